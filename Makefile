# make demo: train two agents now.  make test: the tests.  make check: format, lint, types, tests.
# Choose another interpreter with `make PYTHON=python3.13 ...` (3.11 to 3.13).

PYTHON ?= python3
VENV := .venv
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

.PHONY: demo test check format clean

demo: $(VENV)/.package
	$(BIN)/coevolve train recipes/quickstart.yaml output_dir=runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(TWO)

check: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest $(TWO)

format: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

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
