"""Base weights by `shoal://`: the init container that KServe adds to a pool with such a storageUri.

Staging's pool, with only the storageUri changed, passes every check of a pool with a volume. In addition, the engine
must read what the container writes.
"""

import json
from typing import Any

import pytest

from functions.artifacts.locations import WeightsName
from functions.replica.node_fetch.wanted import Wanted, parse_wanted
from functions.replica.settings import NodeFetchSettings
from tests.manifests.checks.network import listening
from tests.manifests.checks.schemas import Check
from tests.manifests.checks.settings import environment_of, make
from tests.manifests.rendering import Rendering, over
from tests.manifests.test_overlays import CHECKS
from tests.manifests.workloads import KSERVE_CONTAINER, MODELS_PATH, Workload, workloads

PATCHES = [
    {
        "target": {"kind": "InferenceService", "name": "smollm2-135m"},
        "patch": '[{"op": "replace", "path": "/spec/predictor/model/storageUri", "value": "shoal://smollm2-135m@v1"}]',
    }
]
AGENTS_IMAGE = {  # docs/how-to/kubernetes.md, beside `images:`
    "source": {"kind": "ServingRuntime", "name": "shoal-vllm", "fieldPath": "spec.containers.[name=shoal-agent].image"},
    "targets": [{"select": {"kind": "ClusterStorageContainer"}, "fieldPaths": ["spec.container.image"]}],
}


@pytest.fixture(scope="module")
def travelling() -> Rendering:
    return over("staging", patches=json.dumps(PATCHES))


@pytest.fixture
def pool(travelling: Rendering) -> Workload:
    (found,) = [each for each in workloads(travelling) if each.name == "InferenceService shoal-models/smollm2-135m"]
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_every_check(check: Check, travelling: Rendering) -> None:
    assert list(check(travelling)) == []


def test_the_engine_reads_where_it_writes(pool: Workload) -> None:
    """Links are absolute, so both mount the cache at the same path; only the fetcher may write."""
    (fetcher,) = pool.pod["initContainers"]
    engine = next(each for each in pool.containers if each["name"] == KSERVE_CONTAINER)
    written, read = (_mount(each, "weights") for each in (fetcher, engine))
    assert written["mountPath"] == read["mountPath"]
    assert (written.get("readOnly"), read.get("readOnly")) == (None, True)
    assert f"--model={MODELS_PATH}" in engine["args"]


def test_it_fetches_what_the_pool_names_and_seeds_for_as_long_as_the_pod_lives(
    pool: Workload, travelling: Rendering
) -> None:
    (fetcher,) = pool.pod["initContainers"]
    (wanted,) = parse_wanted(fetcher["args"])
    assert isinstance(wanted, Wanted)
    assert wanted.what == WeightsName("smollm2-135m", "v1")
    settings = make(NodeFetchSettings, environment_of(fetcher, pool, travelling))
    assert isinstance(settings, NodeFetchSettings)
    assert fetcher["restartPolicy"] == "Always"  # otherwise endless seeding keeps the engine from starting
    assert settings.seed_s == float("inf")
    probe = fetcher["startupProbe"]
    assert probe["httpGet"] == {"path": "/readyz", "port": settings.listen_port}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= settings.timeout_s
    assert settings.listen_port in listening(pool)


def test_the_cache_stays_below_its_volumes_limit(pool: Workload, travelling: Rendering) -> None:
    """The kubelet evicts a pod whose volume is full, with all its requests."""
    (fetcher,) = pool.pod["initContainers"]
    settings: Any = make(NodeFetchSettings, environment_of(fetcher, pool, travelling))
    (volume,) = [each for each in pool.pod["volumes"] if each["name"] == "weights"]
    limit = volume["emptyDir"]["sizeLimit"]
    assert limit.endswith("Gi")
    assert settings.cache_max_bytes <= 0.95 * int(limit.removesuffix("Gi")) * 2**30


def test_only_nodes_reach_the_fetchers_port(travelling: Rendering, pool: Workload) -> None:
    policy = travelling.one("NetworkPolicy", "engines")["spec"]
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        rules = [rule for rule in policy[direction] if {"port": 8510} in rule.get("ports", [])]
        assert [rule[peers] for rule in rules] == [[{"podSelector": policy["podSelector"]}]]


def test_a_pool_with_a_volume_gets_none_of_it(staging: Rendering) -> None:
    (found,) = [each for each in workloads(staging) if each.name == "InferenceService shoal-models/smollm2-135m"]
    assert "initContainers" not in found.pod


def test_the_agents_image_is_its_image(travelling: Rendering, staging: Rendering) -> None:
    """`images:` ignores a ClusterStorageContainer; the documented replacement keeps both images equal."""
    for rendering in (travelling, staging):
        agent = rendering.one("ServingRuntime", "shoal-vllm")["spec"]["containers"][1]["image"]
        assert rendering.one("ClusterStorageContainer", "shoal-weights")["spec"]["container"]["image"] == agent


def _mount(container: dict[str, Any], volume: str) -> dict[str, Any]:
    (found,) = [each for each in container["volumeMounts"] if each["name"] == volume]
    return found  # type: ignore[no-any-return]
