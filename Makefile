# make demo: fresh machine to finished run.  make test: the fast tests.  Both set themselves up in .venv first.
PYTHON ?= python3
BIN := .venv/bin
# One thread per process: with two, small matrices wait at barriers longer than they compute (docs/troubleshooting.md).
export OMP_NUM_THREADS ?= 1
export GOMP_SPINCOUNT := 0
export OMP_WAIT_POLICY := PASSIVE
export TOKENIZERS_PARALLELISM := false
# On Linux, PyPI's torch is the CUDA build, several gigabytes. Where no GPU is there, torch comes from this
# index if it answers within five seconds, otherwise from where pip looks anyway. GPU=1 or GPU=0 on the command
# line says whether there is one; continuous integration (CI=true) is left to pip. A .venv that is there stays as
# it is: remove it to change over.
CPU_WHEELS := https://download.pytorch.org/whl/cpu
GPU = $(shell nvidia-smi >/dev/null 2>&1 && echo 1)
PIP := $(BIN)/python -m pip install -q -c constraints.txt
# The timer bounds what urlopen's own limit does not: looking up the name.
ANSWERS := import os, threading, urllib.request; limit = threading.Timer(5, os._exit, [1]); \
	limit.daemon = True; limit.start(); urllib.request.urlopen("$(CPU_WHEELS)/torch/", timeout=5)

.PHONY: help setup demo lint test test-first test-second test-slow test-gpu micro clean
help:
	@echo "make setup | demo | lint | test | test-slow | test-gpu | micro | clean"
	@echo "PYTHON=python3.12 picks the interpreter, GPU=1 (GPU=0) at setup torch's CUDA (CPU) build"

setup: .venv/.installed

# The stamp is written last: an interrupted installation is repeated, a finished one costs nothing.
.venv/.installed: requirements.txt requirements-dev.txt constraints.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || \
		{ echo "Python 3.10 or newer is needed: make PYTHON=python3.12 $(or $(MAKECMDGOALS),setup)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "This Python cannot make virtual environments (on Debian: apt-get install python3-venv)"; exit 2; }
	@test "$$(uname -s)" != Linux || test "$(GPU)" = 1 || test -n "$$CI" || ! $(BIN)/python -c '$(ANSWERS)' 2>/dev/null || \
		$(PIP) --retries 1 --timeout 15 --extra-index-url $(CPU_WHEELS) $$(grep '^torch' requirements.txt) || \
		echo "no CPU build of torch from $(CPU_WHEELS): going on without"
	$(PIP) -r requirements.txt -r requirements-dev.txt
	@touch $@

# A minute. The presets take 30 steps and ask twice as many held-out tasks.
DEMO := --steps 19 --probe-every 6 --n-heldout 60
demo: setup
	$(BIN)/python train.py --pop 8 $(DEMO)
	$(BIN)/python -m report $$(ls -td out/*/ | head -n 1)

# Layout, unused names, order of imports: the settings stand in pyproject.toml.
lint: setup
	$(BIN)/ruff check .

# Two halves side by side, each on a core of its own; what one prints comes when it has ended, unless make is
# that of macOS (3.81), which cannot hold it back: there their lines mix. The first half are these files and
# folders, the second half is all the rest, so that a new test file is in it.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
FIRST := $(wildcard tests/course tests/eval tests/micro tests/report tests/sandbox tests/tasks tests/test_nano.py)
test: lint
	@echo "two halves of the fast tests, 2.5 minutes; each is shown when it has ended"
	@$(MAKE) --no-print-directory -j2 $(SYNC) test-first test-second

test-first: setup
	$(BIN)/python -m pytest -q $(FIRST)

test-second: setup
	$(BIN)/python -m pytest -q tests $(FIRST:%=--ignore=%)

test-slow: setup
	$(BIN)/python -m pytest -q -m "slow and not gpu"

# On the card that is there.
test-gpu: setup
	$(BIN)/python -m pytest -q -m gpu

# Makes micro/base anew, the bundled base model; seeds fixed (micro/README.md says how long it took).
micro: setup
	$(BIN)/python -m micro.make

clean:
	rm -rf .venv out .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
