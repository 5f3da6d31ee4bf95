# The two commands that matter: `make run` and `make test`. Both set everything up first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
MODEL  := data/models/smollm2-135m-instruct
JOB       ?= product_tagging
PARTITION ?= 2026-11-02

# Dagster keeps its memory where dagster.yaml says, whoever starts it.
export DAGSTER_HOME := $(CURDIR)
# Models and prompts are nobody's business.
export DO_NOT_TRACK := 1

.PHONY: help setup run test ui lint format screenshots clean

help:
	@echo "make run      set up, then run the sample job: one partition, end to end"
	@echo "make test     set up, then run all tests"
	@echo "make ui       set up, then dagster dev on http://localhost:3000"
	@echo "make lint     ruff, pyright, import rules"
	@echo "make clean    remove what runs have made (the environment and the model stay)"

setup: $(READY) $(MODEL)/model.safetensors data/catalogue/_delta_log

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 …"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing from requirements.lock: about 1.5 GB, a few minutes the first time."
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock \
	  || { echo; echo "If pip has no torch+cpu: export PIP_EXTRA_INDEX_URL with PyTorch's index of CPU"; \
	       echo "wheels (PyTorch's page 'Start Locally' shows it for Linux, pip, CPU), then again."; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(MODEL)/model.safetensors: | $(READY)
	$(BIN)/python resources/smollm2.py $(MODEL)

data/catalogue/_delta_log: | $(READY)
	$(BIN)/python assets/product_tagging/catalogue.py data/catalogue

run: setup
	$(BIN)/acdc run $(JOB) --partition $(PARTITION)

test: setup
	$(BIN)/python -m pytest

ui: setup
	$(BIN)/dagster dev

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The pictures of the README, taken from the running UI by its test.
screenshots: setup
	ACDC_SCREENSHOTS=docs/images $(BIN)/python -m pytest tests/test_ui.py

clean:
	rm -rf data/tables data/dagster
