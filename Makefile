PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: setup test test-slow lint format types demo bench docs fuzz retrain bench-tabular clean

setup: $(VENV)/.done

$(VENV)/.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -q

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

demo: setup
	$(BIN)/ncp cluster examples/iris.csv --out demo-output

bench: $(VENV)/.penguins
	$(BIN)/python benchmarks $(BENCH)

bench-tabular: $(VENV)/.penguins
	$(BIN)/python benchmarks/tabular.py

$(VENV)/.penguins: $(VENV)/.done  # one of the data sets is in a package; its code is not used
	$(BIN)/python -m pip install --quiet --no-deps palmerpenguins
	touch $@

# Run the stages that made the shipped weights MODEL, or go on with them.
retrain: setup
	$(BIN)/python experiments/retrain.py '$(MODEL)'

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

$(VENV)/.docs: $(VENV)/.done
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
