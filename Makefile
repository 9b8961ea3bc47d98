# `make demo` and `make test` install everything first, and again only when the dependencies have changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_DIR ?= runs/demo
# Number of workers of the test suite; each runs torch on one thread. One more than two cores, because some tests wait.
WORKERS ?= 3
# The peers of `make bench` have a separate environment. Set PEERS_PYTHON to use another one.
PEERS := .venv-peers
PEERS_PYTHON ?= $(PEERS)/bin/python
BENCH_FLAGS ?=

# Where the environment forbids compiled modules, each process of the tests compiles them anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all quick lint types docs docs-tables results bench bench-peers package clean

$(STAMP): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else "taac needs Python 3.10 or later; $(PYTHON) is %d.%d. Try: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@# Installed without its dependencies, because its pygame would overwrite pygame-ce, with which it also works.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps mo-gymnasium
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m taac train --root_dir $(DEMO_DIR) --gin_file experiments/demo.gin
	$(BIN)/python -m taac plot --root_dir $(DEMO_DIR)

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy taac

# For frequent use: the tests that need no training run and no separate process, in about two minutes.
QUICK := tests/ops tests/networks tests/replay tests/algorithms tests/analysis tests/test_layers.py tests/test_nest.py \
	tests/test_specs.py tests/runs/test_files.py tests/training/test_hooks.py tests/runs/test_checkpoint.py \
	tests/environments/test_seeded_episodes.py

quick: lint types
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q $(QUICK) --ignore=tests/analysis/test_report_of_trained_runs.py \
		--ignore=tests/analysis/test_report_page.py --ignore=tests/machine/test_compiled.py --ignore=tests/machine/test_amx.py

# Leaves out what is marked `slow`: every command of the pages, the notebook, built packages, whole campaigns.
test: lint types
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -rs -m "not slow"

test-all: lint types
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -rs

# Builds docs/ into docs/_build/html. Every warning is an error: a dead link, a page in no table of contents, bad markup.
docs: $(STAMP)
	rm -rf docs/api
	$(BIN)/python -m sphinx -W --keep-going -q -E -d docs/_build/doctrees docs docs/_build/html
	@echo docs/_build/html/README.html

# Generates the tables in docs/ from the code. A test checks that they are up to date.
docs-tables: $(STAMP)
	$(BIN)/python -m experiments.docs_tables

# Writes docs/results.md, its figures and its rows on the pages of methods from the raw files in experiments/results/.
results: $(STAMP)
	$(BIN)/python -m experiments.results.page

# Trains the cheapest row that others have published (minutes), and says whether it agrees.
results-check: $(STAMP)
	$(BIN)/python -m experiments.results.check

bench: $(STAMP)
	$(BIN)/python -m experiments.benchmarks --peers_python $(PEERS_PYTHON) $(BENCH_FLAGS)

bench-peers: $(PEERS)/.installed

$(PEERS)/.installed: experiments/benchmarks/requirements.txt constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $<
	@touch $@

# Builds dist/, and tries the wheel in an empty environment with packages from the registry.
package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m experiments.distributions --out dist --try

clean:
	rm -rf docs/_build docs/api $(VENV) $(PEERS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
