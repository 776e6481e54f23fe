# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The comparisons of the papers: where the data sets lie, the fraction of the rounds, runs at once, and what else
# `flightning compare` takes (make paper-fedrl DATA=/data BUDGET=0.05 JOBS=2 OPTIONS="--only MNIST")
DATA ?= data
BUDGET ?= 1
JOBS ?= 1
OPTIONS ?=

.PHONY: quickstart test clean paper-fedrl paper-rfedavg paper-fedcd paper-cdfdm
.PHONY: paper-rfedavg-silo paper-rfedavg-device paper-fedcd-accuracy paper-fedcd-scale paper-fedcd-ablation
.PHONY: paper-cdfdm-methods paper-cdfdm-local

quickstart: $(VENV)/.installed
	$(BIN)/flightning fit --config configs/quickstart.yaml
	$(BIN)/flightning compare --config configs/quickstart.yaml --models FedAvg FedProx SOLO --jobs 2 --out runs/quickstart

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow and not gpu"

# $(call compare,GRID,FOLDER)
compare = $(BIN)/flightning compare --grid $(1) --out runs/$(2)-$(BUDGET) --jobs $(JOBS) --data.root $(DATA) --budget $(BUDGET) $(OPTIONS)
# Of several grids, all run even if a cell of the first has failed, which the exit code says at the end.
RUN_ALL := --no-print-directory --keep-going

paper-fedrl: $(VENV)/.installed
	$(call compare,fedrl,paper-fedrl)

paper-rfedavg: $(VENV)/.installed
	@$(MAKE) $(RUN_ALL) paper-rfedavg-silo paper-rfedavg-device

paper-rfedavg-silo: $(VENV)/.installed
	$(call compare,rfedavg,paper-rfedavg-silo)

paper-rfedavg-device: $(VENV)/.installed
	$(call compare,rfedavg_device,paper-rfedavg-device)

paper-fedcd: $(VENV)/.installed
	@$(MAKE) $(RUN_ALL) paper-fedcd-accuracy paper-fedcd-scale paper-fedcd-ablation

paper-fedcd-accuracy: $(VENV)/.installed
	$(call compare,fedcd,paper-fedcd)

paper-fedcd-scale: $(VENV)/.installed
	$(call compare,fedcd_scale,paper-fedcd-scale)

paper-fedcd-ablation: $(VENV)/.installed
	$(call compare,fedcd_ablation,paper-fedcd-ablation)

paper-cdfdm: $(VENV)/.installed
	@$(MAKE) $(RUN_ALL) paper-cdfdm-methods paper-cdfdm-local

paper-cdfdm-methods: $(VENV)/.installed
	$(call compare,cdfdm,paper-cdfdm)

paper-cdfdm-local: $(VENV)/.installed
	$(call compare,cdfdm_local,paper-cdfdm-local)

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "flightning needs Python 3.10 or newer, but '$(PYTHON)' is not on the PATH: install it, or name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "flightning needs Python 3.10 or newer, but '$(PYTHON)' is $$($(PYTHON) --version): name another, make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "this Python cannot make virtual environments: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	@echo "Installing flightning and its dependencies into $(VENV) (PyTorch is large: a few minutes) ..."
	$(BIN)/python -m pip install --quiet --editable . || { echo "the installation failed: is there a network connection to the package index?"; exit 1; }
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	@echo "Installing flightning with its development tools into $(VENV) (PyTorch is large: a few minutes) ..."
	$(BIN)/python -m pip install --quiet --editable '.[dev]' || { echo "the installation failed: is there a network connection to the package index?"; exit 1; }
	@touch $@ $(VENV)/.installed
