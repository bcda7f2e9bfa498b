# `make help` lists the targets. Experiments are found by themselves: one file of experiments/, one target.

PYTHON ?= python3
PY := .venv/bin/python
SIM := .venv/bin/sim
VENV := .venv/.from-lock

EXPERIMENTS := $(filter-out _%,$(patsubst experiments/%.py,%,$(sort $(wildcard experiments/*.py))))
STAMPS := $(EXPERIMENTS:%=results/%/.made)
SOURCES := $(wildcard sim/*.py sim/*/*.py)
COMMANDS := all figures quick test test-theory test-calibration bench lint lock clean help

ifneq ($(filter $(COMMANDS),$(EXPERIMENTS)),)
$(error experiments/ holds a file named like a command of make: $(filter $(COMMANDS),$(EXPERIMENTS)). Rename it)
endif

.PHONY: $(COMMANDS) $(EXPERIMENTS) FORCE
.DELETE_ON_ERROR:
# A run uses all cores by itself.
.NOTPARALLEL:

all: $(EXPERIMENTS) | $(VENV) ## run every experiment that is out of date, and draw its figure

$(EXPERIMENTS): %: results/%/.made

# The stamp lists what was made, in one line. `--if-stale` compares the sweep and the simulating code with the stored
# dataset, so that an edit that changes no number only redraws.
$(STAMPS): results/%/.made: experiments/%.py $(SOURCES) | $(VENV)
	$(SIM) run $* --if-stale
	$(SIM) figures $*
	@echo $$(find results/$* -maxdepth 1 \( -name '*.nc' -o -name 'figure.*' \)) >$@

# Made again when one of the listed files has gone.
gone = $(filter-out $(wildcard $(file <$1)),$(file <$1))
$(foreach stamp,$(wildcard $(STAMPS)),$(if $(call gone,$(stamp)),$(eval $(stamp): FORCE)))

figures: | $(VENV) ## redraw the figures from the stored datasets; never simulates
	$(SIM) figures

quick: | $(VENV) ## all experiments with few trials, into results/quick only
	@set -e; for name in $(EXPERIMENTS); do \
	  $(SIM) run $$name --quick; $(SIM) figures $$name --out results/quick; \
	done

test: | $(VENV) ## the test suite
	$(PY) -m pytest

test-theory: | $(VENV) ## hundreds of random combinations of laws, structures and scales against their closed forms; minutes
	$(PY) -m pytest -m theory

test-calibration: | $(VENV) ## whether the error bars cover, over thousands of seeds; minutes
	$(PY) -m pytest -m "calibration or slow"

bench: | $(VENV) ## the engine against NumPy, torch and JAX, interleaved; 5 minutes on an idle machine
	$(PY) -m bench

lint: | $(VENV) ## style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

lock: | $(VENV) ## resolve the dependencies of pyproject.toml anew, into requirements.lock
	$(PY) -m pip install --quiet 'uv>=0.9'
	$(PY) -m uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-config --upgrade --quiet --custom-compile-command 'make lock' --output-file requirements.lock

clean: ## remove what experiments and bench made, and caches; keeps tracked files, other results and .venv
	git clean -qfdX -- $(EXPERIMENTS:%=results/%) results/quick results/bench
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find sim bench tests experiments -name __pycache__ -prune -exec rm -rf {} +

help: ## this list
	@echo 'make TARGET, where TARGET is one of'
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'
	@echo 'or an experiment'
	@for name in $(EXPERIMENTS); do \
	  awk -v name="$$name" '/"""/ { sub(/^[rR]?"""/, ""); sub(/""".*/, ""); printf "  %-18s %s\n", name, $$0; exit }' \
	    experiments/$$name.py; \
	done

# Set up once, and again when the lock or the project's own table changes.
$(VENV): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=python3.12"; exit 1; }
	@echo 'Setting up .venv from requirements.lock (a minute or two, once)'
	@$(PYTHON) -m venv .venv || { \
	  echo "'$(PYTHON)' cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
