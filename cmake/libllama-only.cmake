# Read by CMake right after llama.cpp's own project() line (CMAKE_PROJECT_<name>_INCLUDE).
# llama-cpp-python turns llama.cpp's "common" library on by force, though it loads only libllama.
# A plain variable hides that cache entry, so neither its compile nor its install step exists:
# 94 s instead of 410 s on two quiet cores.
set(LLAMA_BUILD_COMMON OFF)
