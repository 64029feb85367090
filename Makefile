PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-federation lint bench study results reference wheel clean

help:  ## Show what every target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## Set up, then show what filtering does: a table, a picture
	$(BIN)/filfl demo

test: $(READY) lint  ## Set up, then check style and types, and run all tests
	$(BIN)/pytest -n auto --maxprocesses 8

test-federation: $(READY)  ## Run the tests with real Flower processes: simulation engine, deployment with TLS and keys
	$(BIN)/pytest -m federation -n 2 --dist loadfile

lint: $(READY)  ## Check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

study: $(READY)  ## Measure the filters, into docs/filters.md (half an hour on two cores)
	$(BIN)/python benchmarks/filter_study.py

results: $(READY)  ## Make docs/results.md and its pictures anew (FROM=reproduction takes in new runs first)
	$(BIN)/python benchmarks/results_page.py $(FROM)

reference: $(READY)  ## Write docs/config.md, the reference of all options
	$(BIN)/python -m filfl.config_reference docs/config.md

bench: $(READY)  ## Measure the simulator: against a bare loop, peers, a naive filter and the machine itself
	$(BIN)/python benchmarks/run.py

wheel: $(READY)  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel

clean:  ## Remove the environment, builds and caches (not your runs)
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch comes first and alone: with it in place, nothing that follows asks the index for another build of it.
$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "filfl needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)
