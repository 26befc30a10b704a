"""The production overlay is sized for the load it claims, and the measurements match the formulas."""

import csv
from dataclasses import replace
from typing import Any

import pytest
import yaml

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.controller.kubernetes import memory as controller_memory
from functions.replica.adapter_cache.__main__ import most_memory as adapter_cache_memory
from functions.replica.server import most_memory as agent_memory
from functions.replica.settings import AdapterCacheSettings
from functions.telemetry.memory import total_bytes
from tests.manifests.rendering import PROJECT, Rendering
from tests.manifests.sizing import LOAD, Sizing, quantity, sizing_of, table

ADAPTER_CACHE = PROJECT / "manifests" / "components" / "adapter-cache" / "cache.yaml"
TABLE = PROJECT / "docs" / "measurements" / "data" / "sizing.csv"
MOST_OF_A_CORE = 0.7  # above this, the queue for a single thread grows without bound
CLAIMED_STREAMS = 20_000


@pytest.fixture
def sizing(production: Rendering) -> Sizing:
    return sizing_of(production)


def test_production_carries_what_it_claims(sizing: Sizing) -> None:
    assert sizing.streams >= CLAIMED_STREAMS
    assert sizing.slots <= sizing.streams, "gateways are never what is short"
    assert sizing.gateway_loop_cores <= MOST_OF_A_CORE
    assert sizing.gateway_loop_cores + sizing.gateway_learner_cores <= sizing.gateway[0]
    assert sizing.gateway_usual_bytes <= sizing.gateway[1]
    assert sizing.gateway_most_bytes <= sizing.gateway[2]
    assert sizing.bus_cores <= min(MOST_OF_A_CORE, sizing.bus[0])
    assert sizing.bus_bytes <= sizing.bus[2]
    assert sizing.registry_cores <= sizing.registry[0]
    assert sizing.registry_bytes <= sizing.registry[1]


STAGING_SNAPSHOT_BYTES = 8 * 1024 * 1024  # 15,000 models; production is checked with the largest allowed snapshot


def test_every_process_holds_all_its_bounds_at_once(staging: Rendering, production: Rendering) -> None:
    """A process over its memory limit is killed with all its streams, so the limit must cover every bound."""
    of_staging = sizing_of(staging)
    small = replace(of_staging, load=replace(LOAD, snapshot_bytes=STAGING_SNAPSHOT_BYTES))
    for sizing in (small, sizing_of(production)):
        assert sizing.gateway_most_bytes <= sizing.gateway[2]
        assert sizing.registry_most_bytes <= sizing.registry[2]
        assert sizing.bus_bytes <= sizing.bus[2]


def test_agents_hold_all_their_bounds_at_once(staging: Rendering, production: Rendering) -> None:
    for rendering in (staging, production):
        containers = [each for runtime in rendering.of("ServingRuntime") for each in runtime["spec"]["containers"]]
        agents = [each for each in containers if "agent" in each["name"]]
        assert agents
        for agent in agents:
            assert total_bytes(agent_memory()) <= quantity(agent["resources"]["limits"]["memory"])


def test_controller_and_adapter_cache_hold_all_their_bounds_at_once(staging: Rendering, production: Rendering) -> None:
    def limit(container: dict[str, Any]) -> float:
        return float(quantity(container["resources"]["limits"]["memory"]))

    for rendering in (staging, production):
        (controller,) = rendering.one("Deployment", "controller")["spec"]["template"]["spec"]["containers"]
        assert total_bytes(controller_memory.most()) <= limit(controller)
    (stateful,) = [each for each in yaml.safe_load_all(ADAPTER_CACHE.read_text()) if each["kind"] == "StatefulSet"]
    (cache,) = stateful["spec"]["template"]["spec"]["containers"]
    paths = dict.fromkeys(("internal_token_file", "s3_credentials_file", "cache_dir"), "/x")
    assert total_bytes(adapter_cache_memory(AdapterCacheSettings(**paths))) <= limit(cache)


def test_the_registrys_volume_holds_what_it_may_receive(staging: Rendering, production: Rendering) -> None:
    """A pod that exceeds an emptyDir's limit is evicted, even if the node's disk has room."""
    for rendering in (staging, production):
        settings = sizing_of(rendering).registry_settings
        pod = rendering.one("Service", "registry", group="serving.knative.dev")["spec"]["template"]["spec"]
        (volume,) = [each for each in pod["volumes"] if each["name"] == "state"]
        needed = settings.staging_max_bytes + 3 * SNAPSHOT_MAX_BYTES
        assert needed <= quantity(volume["emptyDir"]["sizeLimit"])
        assert settings.max_adapter_bytes <= settings.staging_max_bytes // 2
        assert settings.max_waiters < settings.max_connections


def test_a_million_streams_is_a_number_of_installations(sizing: Sizing) -> None:
    """A single bus would have to divide every limit among 2,000 gateways on its one thread."""
    assert sizing.installations_for(10**6) == 50
    assert sizing.one_bus_cores_for(10**6) > 10


def test_the_arithmetic_by_hand(sizing: Sizing) -> None:
    """Check 20,000 streams of 40 tokens a second and 400 tokens an answer, 500 streams at each gateway."""
    small = replace(sizing, gateways=40, target=500, replicas=44, pools=3)
    assert small.requests_per_s == 20_000 * 40 / 400 == 2000
    chunks, requests, feeds, idle = 500 * 40 * 25.5e-6, 50 * 180.6e-6, 44 * 121e-6 + 200 * 11e-6, 0.009
    assert small.gateway_loop_cores == pytest.approx(chunks + requests + feeds + idle, abs=1e-4)
    assert small.gateway_learner_cores == pytest.approx(50 * 0.004)
    assert small.bus_cores == pytest.approx(40 * 4 * 0.002 + 44e-6 * (170.3 + 5 * 42.3) + 200 * 42.3e-6, abs=1e-4)
    twice = replace(small, load=replace(LOAD, active_tenants=129))
    assert twice.bus_cores == pytest.approx(small.bus_cores + 0.32, abs=1e-4), "a second call in each round"


def test_measurements_have_these_numbers(sizing: Sizing) -> None:
    with TABLE.open(newline="") as file:
        assert [tuple(row) for row in csv.reader(file)] == [("what", "how", "figure"), *table(sizing)]


@pytest.mark.parametrize(("text", "value"), [("2", 2.0), ("250m", 0.25), ("512Mi", 2**29), ("1Gi", 2**30)])
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == value
