# Each target does the set-up that it needs by itself: a fresh clone needs Python 3.11 or newer and nothing else.
# Another Python: `make setup PYTHON=/path/to/python3.12`.

# The first of these that runs and is new enough; a version manager's shim may exist and yet not run.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)

VENV := .venv
READY := $(VENV)/.ready

.PHONY: help setup demo test check bench clean

help:
	@echo 'make setup   a virtual environment in .venv with everything that the project needs'
	@echo 'make demo    a guided tour that really runs: under a minute, no key, no network'
	@echo 'make test    the tests'
	@echo 'make check   format, lint, types, tests and coverage: what a change must pass'
	@echo 'make bench   the benchmarks'
	@echo 'make clean   remove .venv and what tools leave behind (never data)'

setup: $(READY)

# Done again when the dependencies change.
$(READY): pyproject.toml
	@if [ -z '$(PYTHON)' ]; then \
		echo 'Pattern needs Python 3.11 or newer, and none was found.'; \
		echo 'Install one (https://www.python.org/downloads/) or name it: make setup PYTHON=/path/to/python3.12'; \
		exit 1; fi
	@echo 'Setting up $(VENV) with $(PYTHON); this is done once and takes a minute or two.'
	@if [ ! -x $(VENV)/bin/python ]; then $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo 'Python could not make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv'; \
		exit 1; }; fi
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)

demo: $(READY)
	@$(VENV)/bin/pattern demo

test: $(READY)
	@$(VENV)/bin/python -m pytest

check: $(READY)
	@$(VENV)/bin/python -m tests.check

bench: $(READY)
	@$(VENV)/bin/python -m tests.bench

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
