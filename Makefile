# Everything runs in .venv at the root; each target sets up what it needs.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-ready
DEV_STAMP := $(VENV)/.dev-ready
ORACLE := .venv-oracle

.PHONY: help demo test check fix bench nightly docs lock oracle clean

help:  ## show the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 10

$(RUN_STAMP): requirements.lock packages/recompute/pyproject.toml packages/mdr/pyproject.toml tools/bootstrap.sh
	@sh tools/bootstrap.sh $(VENV) requirements.lock
	@rm -f $(DEV_STAMP); touch $@

$(DEV_STAMP): $(RUN_STAMP) requirements-dev.lock
	@sh tools/bootstrap.sh $(VENV) requirements-dev.lock
	@touch $@

demo: $(RUN_STAMP)  ## run the main job on real input (first run: under 3 minutes)
	@$(BIN)/python tools/demo.py

test: $(DEV_STAMP)  ## run the tests
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(DEV_STAMP)  ## format, lint, types, layers, size budget, advisories
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/size_budget.py
	@$(BIN)/python tools/dependency_audit.py

fix: $(DEV_STAMP)  ## format and apply safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV_STAMP)  ## accuracy and speed tables
	@$(BIN)/python benchmarks/accuracy.py
	@$(BIN)/python benchmarks/speed.py

nightly: $(DEV_STAMP)  ## fuzz the readers of hostile input, a million examples each (hours)
	@RECOMPUTE_FUZZ=1000000 $(BIN)/python -m pytest -q packages/recompute/tests/diagnose/test_fuzz.py

docs: $(DEV_STAMP)  ## regenerate the reference pages that come from tables
	@$(BIN)/python tools/reference_pages.py
	@$(BIN)/python tools/cli_reference.py

oracle: $(DEV_STAMP)  ## compare our verdicts with the real Megatron Core 0.16.1 and 0.19.2
	@sh tools/oracle_env.sh $(ORACLE)
	@$(ORACLE)/bin/python -m pytest -q -c packages/recompute/oracle/pytest.ini -p no:cacheprovider \
	  --ignore packages/recompute/oracle/test_nemo_run.py packages/recompute/oracle
	@PYTHONPATH=$(CURDIR)/$(ORACLE)/nemo-run $(ORACLE)/bin/python -m pytest -q -c packages/recompute/oracle/pytest.ini -p no:cacheprovider \
	  packages/recompute/oracle/test_nemo_run.py
	@PYTHONPATH=$(ORACLE)/mcore-0.19 $(ORACLE)/bin/python -m pytest -q -c packages/recompute/oracle/pytest.ini -p no:cacheprovider \
	  packages/recompute/oracle/test_transformer_config.py packages/recompute/oracle/test_pipeline_split.py packages/recompute/oracle/test_source_tree.py \
	  packages/recompute/oracle/test_apply.py packages/recompute/oracle/test_sparse_attention.py

lock: $(DEV_STAMP)  ## renew the hashed requirements
	@for set in requirements requirements-dev; do \
	  $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header $$set.in -o $$set.lock; done

clean:  ## remove the environments and caches
	rm -rf $(VENV) $(ORACLE) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
