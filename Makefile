# mhsd: every task of the project. `make` alone lists them. Needed: git, make, Python 3.11 or later with its venv module.

# The programs of the environment that setup makes; nothing else of the machine's Python is used.
BIN := .venv/bin
STAMP := .venv/.installed
# Where `make run` keeps receipts and the e-stop latch, what it serves, and any further options of mhsd.
STATE_DIR ?= state
TARGET ?= conveyor-workcell
ARGS ?=
# Rounds of the kill tests in `make soak`.
SOAK_ROUNDS ?= 200

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench soak dist clean

help: ## list these targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(STAMP) ## make .venv and install mhsd with its development tools
	@echo "ready: $(BIN)/mhsd $(BIN)/mhsctl $(BIN)/mhs $(BIN)/openmhs"

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@scripts/setup
	@touch $@

run: $(STAMP) ## serve the reference fixture on 127.0.0.1:7400 and say what to try
	@exec env MHSD_HINTS=1 $(BIN)/mhsd $(TARGET) --state-dir $(STATE_DIR) $(ARGS)

test: check ## style, types, layers and every test
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(ARGS)

check: $(STAMP) ## style, types and the direction of imports
	scripts/check

bench: $(STAMP) ## speed as ratios to bare programs, one JSON line a figure
	@$(BIN)/python scripts/bench/run.py $(ARGS)

soak: $(STAMP) ## property tests with many more examples, the kill tests with many more rounds
	MHSD_SOAK_ROUNDS=$(SOAK_ROUNDS) scripts/soak/run $(ARGS)

dist: $(STAMP) ## sdist and wheel in dist/
	$(BIN)/python -m build --no-isolation --outdir dist

clean: ## remove the environment, packages and caches; state/ is kept, it is evidence
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
