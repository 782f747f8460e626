# One command does it all: `make check`. It uses the active environment; `make setup` makes one in .venv.
PYTHON ?= python3
VENV := .venv

.PHONY: setup check lint types layers test test-slow test-gpu bench demo build

setup:  ## a virtual environment with everything the checks need (CPU build of PyTorch included)
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]' torch==2.13.0 'torchmetrics>=1.6'

check: lint types layers test  ## all that must be green before a change lands

lint:
	ruff check .
	ruff format --check .

types:
	mypy

layers:
	lint-imports

test:
	pytest -n 2

test-slow:
	pytest -m slow

test-gpu:
	pytest -m gpu

bench:
	pytest -m bench -s tests/benchmarks

demo:  ## record a real scenario on this machine and print its report
	tuiprof --record metrics:naive --preset smoke

build:
	$(PYTHON) -m build
