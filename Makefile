# One command does it all: `make check`. It uses the active environment; `make setup` makes one in .venv.
PYTHON ?= python3
VENV := .venv
# PyTorch is named with the rest, so that none of it brings the CUDA build; Triton and JAX run in their interpreters.
TORCH := torch==2.13.0 'torchmetrics>=1.6'
FRAMEWORKS := 'jax==0.10.*' 'triton==3.9.*' 'transformers>=4.56' 'lightning>=2.4' absl-py

.PHONY: setup check lint types layers test smoke test-slow test-gpu campaigns bench demo build

setup:  ## a virtual environment with everything the checks need (CPU build of PyTorch included)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]' $(TORCH) $(FRAMEWORKS) || \
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]' $(TORCH)

check: lint types layers test smoke  ## all that must be green before a change lands

lint:
	ruff check .
	ruff format --check .

types:
	mypy

layers:
	lint-imports

test:
	pytest -n 2

smoke:  ## every variant of every ladder that can run here, at its small size, held to its baseline's numbers
	pytest -n 2 --dist worksteal -rs -m slow tests/scenarios/test_smoke.py tests/scenarios/test_several_processes.py

test-slow:
	pytest -m slow

test-gpu:
	pytest -m gpu

campaigns:  ## try to break every promise of docs/reliability.md, and write what came out there (hours)
	python -m tests.campaigns --write docs/reliability.md

bench:
	pytest -m bench -s tests/benchmarks

demo:  ## record a real scenario on this machine and print its report
	tuiprof --record metrics:naive --preset smoke

build:
	$(PYTHON) -m build
