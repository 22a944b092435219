# Everything is a make target; `make help` lists them. PYTHON picks the interpreter,
# NEWEST that of test-newest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
NEWEST ?= $(shell .ci/newest-python)
NEWEST_VENV := build/newest-env
NEWEST_STAMP := $(NEWEST_VENV)/installed
TARGETS_VENV := build/targets-env
TARGETS_STAMP := $(TARGETS_VENV)/installed
RUN ?= runs/digits
JOBS ?= 2
BENCH ?=
ARGS ?=
WRITE ?=
PARALLEL := -n $(JOBS) --dist worksteal
PYTEST := $(BIN)/python -m pytest $(PARALLEL)
# `make test` has XLA optimise little, to compile quickly: tests/programs.py.
AS_USERS_DO := XLA_FLAGS=

.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow test-all test-newest test-targets lint format notebooks docs bench oracles build clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv and install everything, at pinned versions

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

train: $(STAMP) ## train on embedded data with 4 workers; RUN=folder
	$(BIN)/python train.py --config=configs/default.py --workdir=$(RUN)

test: $(STAMP) ## the tests; ARGS=tests/gossip for a part, JOBS=processes
	$(PYTEST) $(ARGS)

test-slow: $(STAMP) ## what takes longer: real data, many kills, whole matrices
	$(AS_USERS_DO) $(PYTEST) -m slow $(ARGS)

test-all: $(STAMP) ## both tiers
	$(AS_USERS_DO) $(PYTEST) -m '' $(ARGS)

test-newest: $(NEWEST_STAMP) ## tests/smoke.txt on the newest Python and jax there are
	$(AS_USERS_DO) $(NEWEST_VENV)/bin/python -m pytest $(PARALLEL) -m 'not slow or newest' \
	  @tests/smoke.txt $(ARGS)

# Without constraints: what is installed by who installs it today.
$(NEWEST_STAMP): pyproject.toml
	$(or $(NEWEST),$(error test-newest needs NEWEST=path of a Python 3.12 or 3.13)) \
	  -m venv --clear $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python -m pip install --quiet --editable '.[test]'
	@touch $@

test-targets: $(TARGETS_STAMP) ## programs for GPUs and TPUs that are not here, and a table
	JAX_PLATFORMS=cpu $(AS_USERS_DO) $(TARGETS_VENV)/bin/python -m pytest $(PARALLEL) \
	  -m targets tests/targets $(ARGS)
	@$(TARGETS_VENV)/bin/python -m benchmarks.targets

# Compilers for accelerators, in the pinned version of jax: 5 GB, no driver is needed.
# Where one of them cannot be installed, its tests are skipped and say why.
$(TARGETS_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(TARGETS_VENV)
	$(TARGETS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt \
	  --editable '.[test]'
	-$(TARGETS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt \
	  --editable '.[cuda12]'
	-$(TARGETS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt \
	  --editable '.[tpu]'
	@touch $@

lint: $(STAMP) ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

format: $(STAMP) ## write the format that lint asks for
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

notebooks: $(STAMP) ## execute the notebooks; errors fail; WRITE=yes keeps the outputs
	@mkdir -p build/notebooks
	@printf '%s\n' notebooks/*.py | xargs -P $(JOBS) -I BOOK sh -c 'echo BOOK; \
	  $(BIN)/jupytext --quiet --set-kernel python3 --execute --to notebook \
	    --output build/notebooks/$$(basename BOOK .py).ipynb BOOK'
	@test -z "$(WRITE)" || cp build/notebooks/*.ipynb notebooks/
	@echo "open build/notebooks, or, to work with them:"
	@echo "  $(BIN)/python -m pip install --editable '.[notebooks]'"
	@echo "  $(BIN)/jupyter lab notebooks/01_compression_error.ipynb"

docs: $(STAMP) ## the documentation site, in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs . build/docs
	@echo "open build/docs/index.html"

bench: $(STAMP) ## list what is measured; BENCH=name runs it, with ARGS
	@if [ -n "$(BENCH)" ]; then $(BIN)/python -m benchmarks.$(BENCH) $(ARGS); \
	else for file in $$(grep -l __main__ benchmarks/*.py); do \
	  printf '%-32s %s\n' "make bench BENCH=$$(basename $$file .py)" \
	    "$$(sed -n '1s/"""//p' $$file)"; done; fi

oracles: $(STAMP) ## install other people's packages and compare with them
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,oracles]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement tests/oracles/requirements.txt
	$(BIN)/python -m pytest tests/oracles

build: $(STAMP) ## the wheel, and a check that it installs and imports on its own
	rm -rf dist build/wheel-env
	$(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build && wheel-env/bin/python -c "import jaxcomp; print('jaxcomp', jaxcomp.__version__)"

clean: ## remove what can be made again, but no runs
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache *.egg-info
