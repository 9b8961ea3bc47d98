# `make demo` and `make test` do all the set-up; it is redone only when the dependencies changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_DIR ?= runs/demo
# Workers of the test suite; each runs torch on one thread.
WORKERS ?= 2

.PHONY: demo test check lint types clean

$(STAMP): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else "taac needs Python 3.10 or later; $(PYTHON) is %d.%d. Try: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@# Without its dependencies: its pygame would overwrite pygame-ce, with which it runs as well.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps mo-gymnasium
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python -m taac train --root_dir $(DEMO_DIR) --gin_file experiments/demo.gin
	$(BIN)/python -m taac plot --root_dir $(DEMO_DIR)

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy taac

check: lint types
	$(BIN)/python -m pytest -n $(WORKERS)

test: check

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
