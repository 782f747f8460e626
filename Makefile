# Two commands, nothing before them: `make demo` and `make check`. Each sets up what it needs in .venv, once; in a virtual
# environment that is active it uses that one as it is.
PYTHON ?= python3
# PyTorch is named with the rest, so that none of it brings the CUDA build; Triton and JAX run in their interpreters.
TORCH := torch==2.13.0 'torchmetrics>=1.6'
FRAMEWORKS := 'jax==0.10.*' 'triton==3.9.*' 'transformers>=4.56' 'lightning>=2.4' 'accelerate>=1.1' absl-py

ifdef VIRTUAL_ENV
BIN := $(VIRTUAL_ENV)/bin
READY :=
else
BIN := $(CURDIR)/.venv/bin
READY := .venv/ready
endif
export PATH := $(BIN):$(PATH)

.PHONY: setup check lint types layers test smoke test-slow test-gpu campaigns bench demo build

setup: .venv/ready  ## a virtual environment in .venv with everything the checks need (CPU build of PyTorch included)

.venv/ready: pyproject.toml
	@echo "setting up .venv: tuiprof, its checks, PyTorch for CPUs, JAX and Triton (some 500 MB; one to three minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tuiprof needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install --quiet --upgrade pip
	@.venv/bin/python -m pip install --quiet --editable '.[dev]' $(TORCH)
	@.venv/bin/python -m pip install --quiet $(FRAMEWORKS) $(TORCH) || \
	  echo "JAX, Triton or transformers cannot be installed here: their ladders and tests are left out"
	@touch $@

check: lint types layers test smoke  ## all that must be green before a change lands

lint: $(READY)
	ruff check .
	ruff format --check .

types: $(READY)
	mypy

layers: $(READY)
	lint-imports

test: $(READY)
	pytest -n 4

smoke: $(READY)  ## every ladder variant that can run here, at its small size, held to its baseline's numbers; and frameworks' own loops
	pytest -n 2 -rs -m slow tests/scenarios/test_smoke.py tests/scenarios/test_several_processes.py \
	  tests/first_minute/test_first_minute.py

test-slow: $(READY)
	pytest -m slow

test-gpu: $(READY)
	pytest -m gpu

campaigns: $(READY)  ## try to break every promise of docs/reliability.md, and write what came out there (hours)
	python -m tests.campaigns --write docs/reliability.md

bench: $(READY)
	pytest -m bench -s tests/benchmarks

demo: $(READY)  ## record a real scenario on this machine, then explain a trace of the same script from an H200
	@echo "recording metrics:naive on this machine: ResNet-18 with a metric, 24 small steps (about 20 s)"
	@tuiprof --record metrics:naive --preset smoke
	@echo
	@echo "the same script on an H200, from the trace that lies in traces/:"
	@tuiprof why traces/metrics-naive.pt.trace.json.gz
	@echo
	@echo "open it:  $(if $(VIRTUAL_ENV),,.venv/bin/)tuiprof open traces/metrics-naive.pt.trace.json.gz"

build: $(READY)
	$(BIN)/python -m build
