# Everything works on a bare clone with Python 3.10+ and make; the first run makes .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Hundreds of tests start processes of their own, each of which would compile HangScope again where
# an image forbids Python to keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test lint style types shared-tests format clean kills simulator chaos nccl soak bench docs

kills: $(STAMP)  ## 300 random SIGKILLs of a whole job; every ring must stay readable
	$(BIN)/python -m tools.random_kills --rounds 300

simulator: $(STAMP) ## score the diagnosis on 2,200 virtual hangs, beside torchfrtrace
	$(BIN)/python -m tools.simulator --cases 2200 --seed 3031 --stock

chaos: $(STAMP)  ## 300 real jobs with random faults, scored against the truth
	$(BIN)/python -m tools.chaos --runs 300

nccl: $(STAMP)   ## torch's own NCCL code over a pretended GPU (0.5 GB to download, needs g++)
	PRETEND_GPUS=4 $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m pytest -q tests/recording/test_devices.py
	$(BIN)/python -m pytest -q tests/pretend_gpu
	PRETEND_LINKS=memory $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m tools.chaos --device cuda --runs 30
	PRETEND_LINKS=sockets $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m tools.chaos --device cuda --runs 30 --first 30

soak: $(STAMP)   ## 30 minutes of random collectives, restarts and kills
	$(BIN)/python -m tools.soak --minutes 30

bench: $(STAMP)  ## what recording, reading and looking cost
	$(BIN)/python tools/bench_recorder.py
	$(BIN)/python -m tools.bench_analyze
	$(BIN)/python -m tools.bench_tui

docs: $(STAMP)   ## the documentation as HTML, in docs/_build
	$(BIN)/python -m pip install --quiet -c requirements/constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -q -b html docs docs/_build

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(STAMP): pyproject.toml requirements/constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[dev,torch]'
	@touch $@

install: $(STAMP) ## make .venv with HangScope and all it needs

demo: $(STAMP)   ## a real 4-rank job with a real hang, and the verdict on it
	@$(BIN)/hangscope demo

# Jobs wait most of their time: with two processes more than there are cores these stay busy. Tests
# that look at one job (xdist_group) run in one process. Hangs that are watched for time (timed) have
# the machine to themselves, two at a time.
WORKERS := $(shell expr $$(nproc) + 2)

# No stage can stand still: a test has its limit (tests/conftest.py), and a stage has one, too.
WITHIN := $(BIN)/python -m tools.within
PYTEST := $(BIN)/python -m pytest -q

test: style      ## lint, types and every test (10 to 14 minutes on two cores)
	@$(MAKE) --no-print-directory -j2 types shared-tests
	$(WITHIN) 900 $(PYTEST) --reruns 2 -n 2 -m timed tests/demo

shared-tests: $(STAMP)
	$(WITHIN) 2700 $(PYTEST) --reruns 2 -n $(WORKERS) --maxprocesses 8 --dist loadgroup -m 'not timed'

lint: style types ## ruff and mypy only

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(WITHIN) 900 $(BIN)/mypy

format: $(STAMP) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:           ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
