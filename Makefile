# Two commands do everything: `make run` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
WORKERS ?= 2

.PHONY: run test e2e test-slow lint bench results setup clean

run: $(READY)  ## Train FedRecGEL on MovieLens-100K with Flower and print the results
	$(BIN)/fedrecgel run $(ARGS)

test: $(READY)  ## The whole suite but slow tests and faults
	$(BIN)/pytest -m "not slow and not e2e" -n $(WORKERS) $(ARGS)
	$(BIN)/pytest -m "e2e and not slow and not faults" $(ARGS)

e2e: $(READY)  ## Real processes, killed and restarted: minutes
	$(BIN)/pytest -m "(e2e or faults) and not slow" $(ARGS)

test-slow: $(READY)  ## Tests that take minutes each
	$(BIN)/pytest -m slow $(ARGS)

lint: $(READY)  ## Formatting, lint rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)  ## Every benchmark of benchmarks/, results into benchmarks/results/ (ARGS=--quick)
	@set -e; for file in $(wildcard benchmarks/bench_*.py); do \
	  echo "== $$file"; $(BIN)/python $$file $(ARGS); done

results: $(READY)  ## docs/results.md: all strategies and references; hours (ARGS="--dataset NAME=PATH")
	$(BIN)/python benchmarks/write_results.py $(ARGS)

setup: $(READY)  ## The virtual environment alone

# MovieLens-100K comes with the recbole wheel; its own dependencies are not needed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt recbole
	touch $(READY)

clean:  ## Stop the local SuperLink, remove the environment and caches (runs/ stays)
	-test ! -x $(BIN)/fedrecgel || $(BIN)/fedrecgel stop
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
