# Two commands: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TESTS ?= -m "not slow"

ONLY ?=
CORES ?= 1,2

.PHONY: demo screenshot test test-slow bench lint check tables docs format clean

demo: $(VENV)/core
	$(BIN)/vlbm demo --output demo --overwrite

# The README's picture, of the demo's page (needs Chromium).
screenshot:
	test -f demo/report.html || $(MAKE) demo
	scripts/screenshot.sh

test: $(VENV)/dev
	$(BIN)/pytest $(TESTS)

test-slow: $(VENV)/dev
	COMPILE_AS_USERS_DO=1 $(BIN)/pytest -m slow

# Every benchmark, or some: make bench ONLY=rollout,fqe CORES=1
bench: $(VENV)/dev
	$(BIN)/python benchmarks --only "$(ONLY)" --cores "$(CORES)"

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

tables: $(VENV)/core
	$(BIN)/python scripts/tables.py

# The site, in site/; whatever it warns of is an error.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The marks say that an install has finished; a broken one leaves none and starts again.
$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# PyTorch comes first and by its exact version: a range could pull a far larger build.
$(VENV)/dev: $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/docs: $(VENV)/core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) site benchmarks/.peers benchmarks/results demo build .pytest_cache .mypy_cache .ruff_cache
