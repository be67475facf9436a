# Two commands: `make demo` and `make test`. Both build .venv from the pinned set on the first call.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint requirements.txt
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.PHONY: demo test test-fast lint docs clean

demo: .venv/installed
	$(BIN)/rankrise toy runs/demo --quick
	$(BIN)/rankrise train regression-stages --run runs/demo-transformer
	$(BIN)/rankrise figures runs/demo
	$(BIN)/rankrise figures runs/demo-transformer
	$(BIN)/rankrise claims runs/demo
	$(BIN)/rankrise watch runs/demo-transformer
	$(BIN)/rankrise report runs/demo runs/demo-transformer

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

# For daily work: under a minute, without the linters and the slower tests.
test-fast: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow"

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache  # the layers in pyproject.toml
	$(BIN)/oxlint rankrise/show/report/web
	$(MKDOCS) build --strict --site-dir .venv/site  # not --quiet: it would hide dead links from --strict

# The documentation as a site, on http://127.0.0.1:8000; it follows the files as they change.
docs: .venv/installed-test
	$(MKDOCS) serve

.venv/installed: pyproject.toml requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing rankrise and torch into .venv: a few minutes, once."
	$(PIP) --editable '.[train]'
	touch $@

.venv/installed-test: .venv/installed
	@echo "Installing what the tests need into .venv: a few minutes, once."
	$(PIP) --editable '.[test]'
	$(PIP) --no-deps timm  # its torchvision has no CPU build
	touch $@

clean:
	rm -rf .venv
