# Everything works on a bare clone with Python 3.10+ and make; the first run makes .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Hundreds of tests start processes of their own, each of which would compile HangScope again where
# an image forbids Python to keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo check quick-tests test test-all lint style types format clean kills simulator chaos nccl compiler soak bench docs pages hosts nodes

kills: $(STAMP)  ## 300 random SIGKILLs of a whole job; every ring must stay readable
	$(BIN)/python -m tools.random_kills --rounds 300

simulator: $(STAMP) ## score the diagnosis on 2,200 virtual hangs, beside torchfrtrace
	$(BIN)/python -m tools.simulator --cases 2200 --seed 3031 --stock

chaos: $(STAMP)  ## 300 real jobs with random faults, scored against the truth
	$(BIN)/python -m tools.chaos --runs 300

hosts: $(STAMP)  ## real jobs on pretended hosts (network namespaces, root): killed, cut off, slow
	$(BIN)/python -m tools.hosts

nodes: $(STAMP)  ## up to 2,048 nodes, simulated over a real store: time to the verdict, and its cost
	unshare -n sh -c 'ip link set lo up; exec $(BIN)/python -m tools.nodes'

nccl: compiler $(STAMP) ## torch's own NCCL code over a pretended GPU (0.5 GB to download, needs g++)
	PRETEND_GPUS=4 $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m pytest -q tests/recording/test_devices.py
	$(BIN)/python -m pytest -q tests/pretend_gpu tests/nccl_plugin
	PRETEND_LINKS=sockets $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m tools.gpu_faults --rounds 0 --jobs 1 --out .pretend-gpu/faults
	PRETEND_LINKS=memory $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m tools.chaos --device cuda --runs 30
	PRETEND_LINKS=sockets $(BIN)/python -m tools.pretend_gpu .pretend-gpu -- \
		$(BIN)/python -m tools.chaos --device cuda --runs 30 --first 30

# Before .venv is made: that downloads, too.
compiler:
	@for tool in g++ readelf nm; do command -v $$tool >/dev/null || { \
		echo "not found: $$tool; install a C++ compiler and binutils" \
			"(Debian, Ubuntu: apt-get install g++ binutils)"; exit 1; }; done

soak: $(STAMP)   ## 30 minutes of random collectives, restarts and kills
	$(BIN)/python -m tools.soak --minutes 30

bench: $(STAMP)  ## what recording, reading and looking cost
	$(BIN)/python tools/bench_recorder.py
	$(BIN)/python -m tools.bench_analyze
	$(BIN)/python -m tools.bench_tui

docs: $(STAMP)   ## the documentation as HTML, in docs/_build
	$(WITHIN) 600 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

pages: $(STAMP)  ## write the pages of the documentation that follow from code
	$(BIN)/python -m tools.pages

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(STAMP): pyproject.toml requirements/constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[dev,docs,torch]'
	@touch $@

install: $(STAMP) ## make .venv with HangScope and all it needs

demo: $(STAMP)   ## a real 4-rank job with a real hang, and the verdict on it
	@$(BIN)/hangscope demo

# Jobs wait most of their time: with four processes more than there are cores these stay busy. Tests
# that look at one job (xdist_group) run in one process. The demos' hangs (alone) have the machine to
# themselves, two at a time. No stage can stand still: a test has its limit
# (tests/conftest.py), and a stage has one, too.
CORES   := $(shell nproc)
WORKERS := $(shell expr $(CORES) + 4)
WITHIN  := $(BIN)/python -m tools.within
PYTEST  := $(BIN)/python -m pytest -q --dist loadgroup
NO_TORCH := tests/diagnosis tests/lateness tests/replay tests/report tests/ring tests/trace \
	$(wildcard tests/test_*.py)
JOB_TESTS := $(filter-out $(NO_TORCH) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
# Without "slow", unless all is asked for; without "long" in the inner loop.
SHORT = and not slow
QUICK = and not long

check: style     ## the inner loop: diagnosis, trace, ring, report, fixtures, style, types, docs
	@$(MAKE) --no-print-directory -j3 QUICK='$(QUICK)' types docs quick-tests

quick-tests: $(STAMP)
	$(WITHIN) 1800 $(PYTEST) -n $(CORES) -m 'not alone $(QUICK) $(SHORT)' $(NO_TORCH)
	$(BIN)/hangscope replay fixtures

test: QUICK =
test: check      ## check, what takes longer, and a real job for each promise; what CI runs
	$(WITHIN) 2400 $(PYTEST) -n $(WORKERS) --maxprocesses 8 -m 'not alone $(SHORT)' $(JOB_TESTS)
	$(WITHIN) 900 $(PYTEST) -n 2 -m 'alone $(SHORT)' tests/demo

test-all: export TESTS_DEEP := 1
test-all:        ## all tests, fuzzing at depth, kills, launchers, pretended NCCL
	$(MAKE) SHORT= test
	$(MAKE) kills nccl

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
