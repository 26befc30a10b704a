"""The kind recipe's overlay (tests/cluster/kind) renders and passes the checks of an overlay over staging."""

import json

import pytest

from tests.manifests.checks.schemas import Check
from tests.manifests.containerfiles import read
from tests.manifests.rendering import PROJECT, Rendering, parse, render
from tests.manifests.test_overlays import CHECKS
from tests.manifests.workloads import workloads

# The simulated engine has its own image and takes arguments instead of settings.
_ELSEWHERE = ("image_findings", "settings_findings")
KIND = PROJECT / "tests" / "cluster" / "kind"


@pytest.fixture(scope="module")
def recipe() -> Rendering:
    return render(KIND)


@pytest.mark.parametrize("check", [check for check in CHECKS if check.__name__ not in _ELSEWHERE])
def test_it_passes_every_check(check: Check, recipe: Rendering) -> None:
    assert list(check(recipe)) == []


def test_three_gateways_and_simulated_engines(recipe: Rendering) -> None:
    gateway = recipe.one("Service", "gateway", group="serving.knative.dev")
    assert gateway["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/min-scale"] == "3"
    engine = recipe.one("ServingRuntime", "shoal-vllm")["spec"]["containers"][0]
    assert engine["command"][1:] == read(KIND / "Containerfile").stages[engine_target()].entrypoint[1:]


def test_the_store_and_the_database_are_those_of_its_infra(recipe: Rendering) -> None:
    infra = Rendering(parse((KIND / "infra.yaml").read_text()))
    ports = {each["metadata"]["name"]: each["spec"]["ports"][0]["port"] for each in infra.of("Service")}
    installation = recipe.one("ConfigMap", "shoal-installation", "shoal")["data"]
    assert installation["s3-endpoint-url"] == f"http://s3.infra.svc:{ports['s3']}"
    assert "@postgres.infra.svc/" in installation["database-url"]
    assert ports["postgres"] == 5432
    identities = json.loads(infra.one("ConfigMap", "s3")["data"]["s3.json"])["identities"]
    assert "Admin" in identities[0]["actions"]
    assert {each.name for each in workloads(infra)} == {"Deployment infra/postgres", "Deployment infra/s3"}


def engine_target() -> str:
    return next(iter(read(KIND / "Containerfile").stages))
