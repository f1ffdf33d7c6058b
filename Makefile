# make demo, make test: each makes the virtual environment if it is missing, installs, and runs.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

.PHONY: help demo test test-slow coverage lint format benchmark docs docs-serve clean

help:
	@echo "make demo       train cross-entropy, FGR and the recommended method on the embedded data set, write runs/demo/report.html"
	@echo "make test       lint, types, layers and all tests but the slow ones"
	@echo "make test-slow  the slow tests"
	@echo "make coverage   which lines the tests run"
	@echo "make benchmark  speed as ratios to named peers"
	@echo "make format     format the code"
	@echo "make docs       build the documentation into build/site"
	@echo "make docs-serve build it, and show it at http://127.0.0.1:8000"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "shiftcal needs Python 3.11 or newer; none was found."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing shiftcal into $(VENV) (once, a minute or two) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing shiftcal and its test tools into $(VENV) (once, a minute or two) ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/shiftcal demo --out runs/demo

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --cov --cov-report=term:skip-covered

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests -m slow -n 2 --dist loadfile --durations=10

benchmark: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/low_pass.py
	$(BIN)/python benchmarks/augmix.py
	$(BIN)/python benchmarks/flsd53.py
	$(BIN)/python benchmarks/corruptions.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/processes.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/make_configuration.py
	$(BIN)/python docs/make_commands.py
	$(BIN)/python docs/make_api.py
	$(BIN)/python docs/make_methods.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
