# `make demo` and `make test` do all they need; a second run starts in seconds.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --quiet --disable-pip-version-check -c constraints.txt

# llama.cpp is compiled when llama-cpp-python is installed: libllama alone, without the multimodal
# part, tools, tests and the "common" library (see cmake/libllama-only.cmake).
export CMAKE_ARGS ?= -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_EXAMPLES=OFF \
  "-DCMAKE_PROJECT_llama.cpp_INCLUDE=$(CURDIR)/cmake/libllama-only.cmake"

.PHONY: demo test lint mutants bench bench-control bench-hf clean

demo: .venv/demo  ## an answer of the demo model, every token coloured by its origin
	$(BIN)/draftproof generate --target demo --draft lookup --show-rejected "Correct the spelling and repeat the \
	whole text: The quick brown fox jumpd over the lazy dog. The dog was not amused, and the fox was \
	very hapy. The quick brown fox laughed at the lazy dog."

test: .venv/dev  ## all tests; those that run real models one after another, as their threads spin
	$(BIN)/pytest -m "not model" --numprocesses auto --maxprocesses 4
	$(BIN)/pytest -m model

lint: .venv/dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: .venv/dev  ## wrong rules, and which check catches each
	$(BIN)/python tests/mutants.py

bench: .venv/dev  ## what the loop around the models costs
	$(BIN)/python benchmarks/overhead.py

bench-control: .venv/dev  ## the automatic draft length beside every fixed one (PROMPTS=file.jsonl)
	$(BIN)/python benchmarks/control.py $(if $(PROMPTS),--prompts $(PROMPTS))

bench-hf: .venv/dev  ## beside transformers' own generation, on the same weights
	$(BIN)/python benchmarks/against_transformers.py

clean:  ## remove the environment
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo .venv/dev: .venv/%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing; the first time llama.cpp is compiled, which takes some minutes ..."
	$(PIP) -e '.[$*]'
	@touch $@
