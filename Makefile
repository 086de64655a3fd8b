# Everything starts here. `make` alone lists what there is.
#
#   PYTHON=python3.11   the interpreter to build environments with (default: the first supported one found)
#   STACK=paper|modern  the versions to install, from stacks/ (default: paper on Python 3.10 and 3.11, else modern)

PYTHON ?= $(shell for candidate in python3 python3.11 python3.12 python3.13 python3.10; do \
  { $$candidate -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'; } 2>/dev/null \
  && echo $$candidate && break; done)
PYTHON := $(PYTHON)
VERSION := $(shell $(or $(PYTHON),false) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
STACK ?= $(if $(filter 3.10 3.11,$(VERSION)),paper,modern)

VENV := .venv-$(STACK)
BIN := $(VENV)/bin
CREATED := $(VENV)/.created-with-python$(VERSION)
READY := $(VENV)/.ready-with-python$(VERSION)
KERNEL := src/bcppo/tasks/navigation/kernel.c

# One thread a process: runs are parallel over processes, and sums whose order depends on a thread count would differ.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

OUT ?= $(shell n=1; while [ -e runs/train-$$n ]; do n=$$((n + 1)); done; echo runs/train-$$n)
OUT := $(OUT)
ARGS ?=
BUNDLE ?= dist/bundle
NODE_PYTHON ?= 3.12
BENCHES ?= $(wildcard bench/simulators.py bench/training.py bench/latency.py)

.DEFAULT_GOAL := help
.PHONY: help setup train study-smoke test test-full check lint types imports bench bundle docs clean preflight

help: ## list the targets
	@echo "bcppo: make TARGET [STACK=paper|modern] [PYTHON=python3.11]"
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 14
	@echo
	@echo "Here: Python $(or $(VERSION),(none found)), the $(STACK) stack, environment $(VENV)."

setup: $(READY) ## build the environment, as every target below does when it has to

train: $(READY) ## train BCPPO on Goal1 for a minute or two and set it beside random actions (OUT= names the run folder)
	@echo "==> Training BCPPO on Goal1 for 100,000 steps with the preset 'quick'; the run folder is $(OUT)."
	$(BIN)/python -m bcppo train --task goal1 --method bcppo --preset quick --eval-every 50000 --out $(OUT) \
	  --beside-random $(ARGS)
	@echo "==> The paper's own settings are the default, --preset paper: a million steps, and goals come later (docs/results.md)."

study-smoke: $(READY) ## run a small study on all cores and make its report, in runs/study-smoke: a few minutes
	@echo "==> Running the study 'smoke', 16 short runs; the same command goes on where it was stopped."
	$(BIN)/python -m bcppo study run smoke --out runs/study-smoke $(ARGS)
	$(BIN)/python -m bcppo report runs/study-smoke

test: $(READY) ## run the fast tests (ARGS= goes to pytest)
	@echo "==> Running the fast tests on the $(STACK) stack."
	$(BIN)/python -m pytest $(ARGS)

test-full: $(READY) ## run all tests, the slow ones too
	@echo "==> Running all tests, the slow ones too, on the $(STACK) stack."
	$(BIN)/python -m pytest -m '' $(ARGS)

check: lint types imports ## lint (ruff), check types (mypy) and what may import what (import-linter); make -k runs all three

lint: $(READY)
	@echo "==> Linting."
	$(BIN)/ruff check .

types: $(READY)
	@echo "==> Checking types."
	$(BIN)/mypy

imports: $(READY)
	@echo "==> Checking what may import what."
	$(BIN)/lint-imports

bench: $(READY) ## run the benchmarks one after another (BENCHES= picks, ARGS= goes to each)
	@test -n "$(BENCHES)" || echo "There is no benchmark in bench/ yet."
	@set -e; for script in $(BENCHES); do echo "==> $$script on the $(STACK) stack."; $(BIN)/python $$script $(ARGS); done

bundle: $(READY) ## pack what a GPU node without a network needs (NODE_PYTHON=3.12; WORKERS=1 adds the simulators of STACK=paper)
	@scripts/bundle.sh $(BIN)/python $(BUNDLE) $(NODE_PYTHON) $(WORKERS)

docs: $(READY) ## build the documentation into docs/_build/html; a warning is an error
	@echo "==> Building the documentation."
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

clean: ## remove environments, builds and caches; run folders stay
	rm -rf .venv-paper .venv-modern build dist docs/_build src/*.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache .import_linter_cache
	find src -name '_kernel*.so' -delete
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

preflight:
	@test -n "$(VERSION)" || { echo "No Python from 3.10 to 3.13 was found; name one with PYTHON=/path/to/python."; exit 1; }
	@case "$(VERSION)" in 3.10|3.11|3.12|3.13) ;; *) \
	  echo "bcppo needs Python 3.10 to 3.13, but $(PYTHON) is $(VERSION)."; exit 1;; esac
	@test -f stacks/$(STACK).txt || { echo "There is no stack named '$(STACK)'; use STACK=paper or STACK=modern."; exit 1; }
	@case "$(STACK)-$(VERSION)" in paper-3.12|paper-3.13) \
	  echo "The paper stack needs Python 3.10 or 3.11, but $(PYTHON) is $(VERSION); use STACK=modern or another PYTHON=."; \
	  exit 1;; esac

# The checks come before the environment but must not make it look out of date: hence the order-only `|`.
$(CREATED): | preflight
	@echo "==> Creating the environment $(VENV) with Python $(VERSION)."
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(READY): $(CREATED) stacks/$(STACK).txt pyproject.toml setup.py $(KERNEL) | preflight
	@echo "==> Installing the $(STACK) stack (torch, MuJoCo, Gymnasium, NumPy): a few minutes the first time."
	@$(BIN)/python -m pip install -qq -r stacks/$(STACK).txt
	@echo "==> Installing bcppo and its development tools, and compiling the simulator kernel."
	@$(BIN)/python -m pip install -qq -e ".[dev]" -c stacks/$(STACK).txt
	@$(BIN)/python -m pip check
	@$(BIN)/python -c "from bcppo.tasks.navigation.compiled import load_kernel as load; \
	print('==> The simulators use ' + ('their compiled kernel.' if load() else 'the pure-Python engine (no kernel was built): same results, slower.'))"
	@touch $@
