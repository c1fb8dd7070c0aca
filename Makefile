# `make demo` and `make test` do all they need; a second run starts in seconds.
PYTHON ?= python3
BIN := .venv/bin
# Only libllama: no multimodal part, no tools, no tests, no "common" library.
export CMAKE_ARGS ?= -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_EXAMPLES=OFF -DCMAKE_PROJECT_llama.cpp_INCLUDE=$(CURDIR)/cmake/libllama-only.cmake

.PHONY: demo test lint mutants bench clean

demo: .venv/demo
	$(BIN)/draftproof generate --target demo --draft lookup "Hello"

test: .venv/dev
	$(BIN)/pytest

lint: .venv/dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

.venv/python:
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo .venv/dev: .venv/%: .venv/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
