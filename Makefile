# Development commands of shoal. `make help` lists the targets.
#
# Every target uses .venv, which is created with the python3 on PATH (3.11 or later); `shoal` prepares the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.shoal-installed
SHOAL := $(BIN)/shoal

# Locations of the real engine and model, for the tests that need them.
ENGINE_VENV ?= $(or $(SHOAL_ENGINE_VENV),$(CURDIR)/.venv-engine)
STATE_DIR ?= $(or $(SHOAL_STATE_DIR),$(CURDIR)/.shoal)
WITH_ENGINE := SHOAL_ENGINE_PYTHON="$(ENGINE_VENV)/bin/python" SHOAL_BASE_MODEL_DIR="$(STATE_DIR)/models/smollm2-135m"

# NIXL, for the test in which one engine reads another's KV blocks; installed apart from the engine's environment.
NIXL_DIR := $(STATE_DIR)/nixl
NIXL_LOCK := functions/controller/local/prepare/nixl.lock.txt

# Folder of the drills that `make test` runs; collecting the whole of tests/ would take half a minute.
DRILLS := tests/drills

# Hundreds of test processes import the same modules, so bytecode is always written.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up down test soak cluster-test check lint types unit newest beside processes soak-processes soak-beside loadtest bench bench-peers docs seeds fuzz fmt lock sbom audit

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMP) ## start a local fleet with a real model, and show a first answer
	@$(SHOAL) up

down: ## stop the local fleet and all its processes
	@if [ -x $(SHOAL) ]; then $(SHOAL) down; else echo "nothing runs: $(VENV) is not there"; fi

check: $(STAMP) lint ## lint, types, import law, unit tests: six minutes on two cores
	@$(MAKE) --no-print-directory -j2 types unit
	@$(MAKE) --no-print-directory newest

lint: $(STAMP) # with the import law and the check of the prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m tests.prose

types: $(STAMP) # mypy uses one core
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/pytest -q -n auto --dist loadfile -m "not servers and not engine and not drill and not soak and not cluster"

# Tests with servers wait for their processes a third of the time, drills more than half. Tests that only compute run in
# that time, at a lower priority. The engine is prepared first, because some unit tests read the installed vLLM.
test: $(STAMP) ## run all tests, with real servers and the real engine: a quarter of an hour on two cores
	$(SHOAL) prepare
	@$(MAKE) --no-print-directory lint
	@$(WITH_ENGINE) $(MAKE) --no-print-directory -j2 processes beside

# Types and the newest Python use one core each and run first, in parallel. Unit tests use both cores afterwards.
beside: $(STAMP) # `check` without `lint`, in parallel to `processes`
	nice -n 10 $(MAKE) --no-print-directory -j2 types newest
	nice -n 10 $(MAKE) --no-print-directory unit

newest: $(STAMP)
	$(BIN)/python -m tests.newest_python

# Four tests with servers in parallel, the longest first (tests/grouping.py); then drills, one at a time. A few failures
# are repeated once and reported at the end (docs/decisions/0020).
processes: $(STAMP)
	$(BIN)/python -m tests.second_try -q -n 4 --dist loadfile -m "(servers or engine) and not drill and not soak"
	$(BIN)/python -m tests.second_try -q -m "drill and not soak" $(DRILLS)

# Exactly the tests with the marker `soak` (tests/soak.py). The real engine and the drills run last and alone, because
# they are sensitive to load. It takes some hours, one of them for the chaos test (SHOAL_CHAOS_MINUTES).
soak: $(STAMP) ## before a release: every kill point, seed and refusal of which `make test` runs a sample
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

# Changes the installation that KUBECONFIG and SHOAL_CLUSTER_URL name (docs/how-to/accept-a-cluster.md).
cluster-test: $(STAMP) ## run the acceptance suite on a Kubernetes installation: half an hour
	$(BIN)/pytest -v -s -m cluster tests/cluster $(ARGS)

loadtest: $(STAMP) ## run Locust on the running fleet and check thresholds: PROFILE=chat|spike|mix|… ARGS="-u 50 -t 5m"
	@$(BIN)/python -m loadtests.locust $(or $(PROFILE),chat) $(ARGS)

bench: $(STAMP) ## compare the gateway with its peers: CPU, latency, memory (needs a quiet machine; ARGS="--help" lists the parts)
	$(BIN)/python -m loadtests.bench $(ARGS)

docs: $(STAMP) ## write docs/reference from the code
	$(BIN)/python -m docs.generate

seeds: $(STAMP) ## run a thousand seeds of gateway faults in virtual time (some minutes; ARGS="--seed 417 -v" replays one)
	$(BIN)/python -m tests.drills.virtual $(or $(ARGS),--seeds 1000)

fuzz: $(STAMP) ## run all property tests with five times as many new examples (minutes; ARGS="--fresh-examples 50 tests/api")
	$(BIN)/pytest -q -n auto --timeout 1800 --fresh-examples 5 -m "not servers and not engine and not drill and not cluster" $(ARGS)

bench-peers: $(STAMP) ## prepare the environments of the peers for `make bench`
	$(BIN)/python -m loadtests.bench.peers

lock: $(STAMP) ## write the lock files after a change in pyproject.toml (ARGS="--upgrade" upgrades every version)
	$(BIN)/python requirements/lock.py $(ARGS)

sbom: $(STAMP) ## write the SBOM of each image (CycloneDX) after a change of a lock or a build file (images/README.md)
	$(BIN)/python -m requirements.sbom $(ARGS)

audit: $(STAMP) ## list known vulnerabilities of every pinned version, from the advisories in SHOAL_OSV_DIR (images/README.md)
	@$(BIN)/python -m requirements.audit $(ARGS)

fmt: $(STAMP) ## format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Touched last, so that an interrupted installation is repeated. A .venv whose pip does not run is created again; any
# other is completed.
$(STAMP): pyproject.toml requirements/dev.txt
	@echo "installing shoal into $(VENV) from requirements/dev.txt (about a minute the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "shoal needs Python 3.11 or later; $(PYTHON) is older: make PYTHON=python3.11 …"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
