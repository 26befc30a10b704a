# shoal: one machine, one command. `make help` lists what there is.
#
# Everything goes through .venv, made with the python3 that is on PATH (3.11 or later); `shoal` makes the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.shoal-installed
SHOAL := $(BIN)/shoal

# The real engine and model, where the tests that need them find them.
ENGINE_VENV ?= $(or $(SHOAL_ENGINE_VENV),$(CURDIR)/.venv-engine)
STATE_DIR ?= $(or $(SHOAL_STATE_DIR),$(CURDIR)/.shoal)
WITH_ENGINE := SHOAL_ENGINE_PYTHON="$(ENGINE_VENV)/bin/python" SHOAL_BASE_MODEL_DIR="$(STATE_DIR)/models/smollm2-135m"

# NIXL, for the test in which one engine takes another's KV blocks; beside the engine's environment, not in it.
NIXL_DIR := $(STATE_DIR)/nixl
NIXL_LOCK := functions/controller/local/prepare/nixl.lock.txt

# Where drills are that `make test` runs: to look for them everywhere takes half a minute.
DRILLS := tests/drills

# Hundreds of the tests' processes import the same modules: bytecode is kept, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up down test soak cluster-test check lint types unit newest beside processes soak-processes soak-beside loadtest bench bench-peers docs seeds fuzz fmt lock sbom audit

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMP) ## a running local fleet with a real model, and a first answer
	@$(SHOAL) up

down: ## stop the fleet; nothing is left running
	@if [ -x $(SHOAL) ]; then $(SHOAL) down; else echo "nothing runs: $(VENV) is not there"; fi

check: $(STAMP) lint ## lint, types, import law, unit tests: six minutes on two cores
	@$(MAKE) --no-print-directory -j2 types unit
	@$(MAKE) --no-print-directory newest

lint: $(STAMP) # with the import law and the check of the prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

types: $(STAMP) # mypy has use for one core
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/pytest -q -n auto --dist loadfile -m "not servers and not engine and not drill and not soak and not cluster"

# Tests with servers wait for their processes a third of the time, drills more than half: what only computes fills it,
# at a priority that leaves them a core when they want one.
# The engine is prepared first: some of the unit tests, too, compare what is here with the vLLM that is installed.
test: $(STAMP) ## everything, with real servers and the real engine: a quarter of an hour on two cores
	$(SHOAL) prepare
	@$(MAKE) --no-print-directory lint
	@$(WITH_ENGINE) $(MAKE) --no-print-directory -j2 processes beside

# First, at once, what has use for one core each; unit tests take both when the processes beside them have ended.
beside: $(STAMP) # `check` without `lint`
	nice -n 10 $(MAKE) --no-print-directory -j2 types newest
	nice -n 10 $(MAKE) --no-print-directory unit

newest: $(STAMP)
	$(BIN)/python -m tests.newest_python

# Four tests with servers at once, those that take longest first (tests/grouping.py); then drills, one at a time. A few
# that fail are tried once more, and named at the end (docs/decisions/0020).
processes: $(STAMP)
	$(BIN)/python -m tests.second_try -q -n 4 --dist loadfile -m "(servers or engine) and not drill and not soak"
	$(BIN)/python -m tests.second_try -q -m "drill and not soak" $(DRILLS)

# Every test with the marker `soak` (tests/soak.py) and no other: with `make test`, everything there is. The real engine
# and the drills come last and alone: both need their core when they want one. Some hours; one of them is the chaos
# (SHOAL_CHAOS_MINUTES).
soak: $(STAMP) ## what `make test` samples, all of it: every kill point, seed and refusal; before a release
	$(SHOAL) prepare
	@$(MAKE) --no-print-directory $(NIXL_DIR)/.made
	@$(WITH_ENGINE) $(MAKE) --no-print-directory -j2 soak-processes soak-beside
	$(WITH_ENGINE) SHOAL_NIXL_DIR="$(NIXL_DIR)" $(BIN)/python -m tests.second_try -q -m "soak and (engine or drill)"

soak-processes: $(STAMP)
	$(BIN)/python -m tests.second_try -q -n 2 --dist loadfile -m "soak and not engine and not drill"

soak-beside: $(STAMP)
	nice -n 10 $(BIN)/pytest -q -n auto --all-examples -m "hypothesis and not servers and not engine and not drill"
	nice -n 10 $(BIN)/python -m tests.newest_python --whole

$(NIXL_DIR)/.made: $(NIXL_LOCK)
	rm -rf "$(NIXL_DIR)"
	"$(ENGINE_VENV)/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes --target "$(NIXL_DIR)" -r $<
	@touch "$@"

# Changes the installation that KUBECONFIG and SHOAL_CLUSTER_URL name: docs/how-to/accept-a-cluster.md.
cluster-test: $(STAMP) ## the acceptance suite, on an installation on Kubernetes: half an hour
	$(BIN)/pytest -v -s -m cluster tests/cluster $(ARGS)

loadtest: $(STAMP) ## Locust on the fleet that runs, judged by thresholds: PROFILE=chat|spike|mix|… ARGS="-u 50 -t 5m"
	@$(BIN)/python -m loadtests.locust $(or $(PROFILE),chat) $(ARGS)

bench: $(STAMP) ## the gateway beside its peers: CPU, latency, memory (a quiet machine; ARGS="--help" for parts of it)
	$(BIN)/python -m loadtests.bench $(ARGS)

docs: $(STAMP) ## the pages of docs/reference, from the code
	$(BIN)/python -m docs.generate

seeds: $(STAMP) ## a thousand seeds of faults on the gateway in virtual time (some minutes; ARGS="--seed 417 -v" replays one)
	$(BIN)/python -m tests.drills.virtual $(or $(ARGS),--seeds 1000)

fuzz: $(STAMP) ## every property test with five times its examples, new ones (minutes; ARGS="--fresh-examples 50 tests/api")
	$(BIN)/pytest -q -n auto --timeout 1800 --fresh-examples 5 -m "not servers and not engine and not drill and not cluster" $(ARGS)

bench-peers: $(STAMP) ## the peers' own environments for `make bench`, made beforehand
	$(BIN)/python -m loadtests.bench.peers

lock: $(STAMP) ## the locks with hashes made again after a change in pyproject.toml (ARGS="--upgrade" for every version anew)
	$(BIN)/python requirements/lock.py $(ARGS)

sbom: $(STAMP) ## what each image holds, as CycloneDX: after a change of a role's lock or a build file (images/README.md)
	$(BIN)/python -m requirements.sbom $(ARGS)

audit: $(STAMP) ## known vulnerabilities of every pin, by the advisories in SHOAL_OSV_DIR (images/README.md)
	@$(BIN)/python -m requirements.audit $(ARGS)

fmt: $(STAMP) ## format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Written last, so that an installation that was killed half-way is done again. A .venv whose pip does not run is made
# anew; one that does is completed.
$(STAMP): pyproject.toml requirements/dev.txt
	@echo "installing shoal into $(VENV) from requirements/dev.txt (about a minute the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "shoal needs Python 3.11 or later; $(PYTHON) is older: make PYTHON=python3.11 …"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
