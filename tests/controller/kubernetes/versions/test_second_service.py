"""Second services: their names, the fields copied from the pool's own service, and the own service's delayed change."""

from dataclasses import replace

import pytest

from functions.controller.kubernetes.objects import BUDGET, Body
from functions.controller.kubernetes.render import Autoscaled, DesiredObject
from functions.controller.kubernetes.versions.holding_back import is_held_back, with_live_model, without_number
from functions.controller.kubernetes.versions.plan import FoundPool, FoundService, pool_step
from functions.controller.kubernetes.versions.second_service import (
    NAME_MAX_CHARS,
    is_as_wanted,
    second_budget,
    second_service,
    service_name,
)
from functions.controller.kubernetes.webhook_rules import findings
from functions.decisions.rollout.replica_shares import VersionShares

V1, V2, V3 = "shoal://a@v1", "shoal://a@v2", "shoal://a@v3"
NAME = service_name("a", "v2", V2)
LIVE: Body = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {
        "name": "a",
        "namespace": "shoal-models",
        "uid": "u-1",
        "resourceVersion": "7",
        "labels": {"shoal.dev/pool": "a", "team": "chat"},
        "annotations": {
            "serving.kserve.io/deploymentMode": "Standard",
            "serving.kserve.io/autoscalerClass": "external",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
    },
    "spec": {
        "predictor": {
            "minReplicas": 4,
            "maxReplicas": 8,
            "timeout": 3600,
            "model": {"modelFormat": {"name": "vLLM"}, "storageUri": V1, "args": ["--max-model-len=2048"]},
        }
    },
    "status": {"deploymentMode": "Standard"},
}


def declared(uri: str, *args: str, replicas: int | None = 4) -> DesiredObject:
    model = {"modelFormat": {"name": "vLLM"}, "storageUri": uri, "args": [*args]}
    number = {"minReplicas": replicas} if replicas is not None else {}
    metadata = {key: LIVE["metadata"][key] for key in ("name", "namespace", "labels")}
    body = {"apiVersion": LIVE["apiVersion"], "kind": LIVE["kind"], "metadata": metadata}
    return DesiredObject({**body, "spec": {"predictor": {**number, "model": model}}}, 0, "a.yaml:1")


@pytest.mark.parametrize("version", ["v2", "V2.1_b", "2026-11-26", "v" * 63, "-"])
@pytest.mark.parametrize("pool", ["a", "llama-3-8b", "x" * 63])
def test_second_service_name_is_valid_and_unique_per_version(pool: str, version: str) -> None:
    name = service_name(pool, version, V2)
    assert len(name) <= NAME_MAX_CHARS
    wanted = second_service({**LIVE, "metadata": {**LIVE["metadata"], "name": pool}}, None, name, V2, 1)
    assert findings(wanted) == []
    assert name == service_name(pool, version, V2)
    assert name != service_name(pool, version, V3) and name != service_name(pool, version + "x", V2)


def test_second_service_copies_the_pools_with_its_weights_and_number() -> None:
    second = second_service(LIVE, None, NAME, V2, 2)
    assert second["metadata"]["labels"] == {"shoal.dev/pool": "a", "team": "chat", "shoal.dev/version-of": "a"}
    assert second["metadata"]["annotations"] == {
        "serving.kserve.io/deploymentMode": "Standard",
        "serving.kserve.io/autoscalerClass": "none",
    }
    owner = {"apiVersion": LIVE["apiVersion"], "kind": LIVE["kind"], "name": "a", "uid": "u-1"}
    assert second["metadata"]["ownerReferences"] == [owner], "it goes with the pool"
    predictor = second["spec"]["predictor"]
    assert predictor["model"] == {**LIVE["spec"]["predictor"]["model"], "storageUri": V2}
    assert (predictor["minReplicas"], predictor["timeout"]) == (2, 3600)
    assert "maxReplicas" not in predictor, "KServe would refuse more than it"
    budget = second_budget(LIVE, NAME, BUDGET)
    assert budget["spec"]["selector"] == {"matchLabels": {"serving.kserve.io/inferenceservice": NAME}}
    assert budget["metadata"]["ownerReferences"] == [owner]


def test_second_service_gets_the_fields_declared_with_its_weights() -> None:
    wanted = declared(V2, "--max-model-len=4096").body
    assert second_service(LIVE, wanted, NAME, V2, 1)["spec"]["predictor"]["model"]["args"] == ["--max-model-len=4096"]
    other = second_service(LIVE, wanted, "x", V3, 1)["spec"]["predictor"]["model"]
    assert (other["args"], other["storageUri"]) == (["--max-model-len=2048"], V3), "as the pool's are"


def test_server_defaults_cause_no_write_of_the_second_service() -> None:
    second = second_service(LIVE, None, NAME, V2, 2)
    live = {**second, "status": {}, "metadata": {**second["metadata"], "uid": "u-2"}}
    assert is_as_wanted(second, live)
    for count, uri in ((3, V2), (2, V3)):
        assert not is_as_wanted(second_service(LIVE, None, NAME, uri, count), live)


def test_weights_of_the_own_service_change_without_replicas_only() -> None:
    wanted = declared(V2, "--max-model-len=4096")
    assert is_held_back(wanted, LIVE, {V1, V2}, 4)
    assert not is_held_back(wanted, LIVE, {V1, V2}, 0), "none is left"
    assert not is_held_back(declared(V1, "--max-model-len=4096"), LIVE, {V1, V2}, 4), "the same weights"
    assert not is_held_back(wanted, LIVE, {V2}, 4), "what is live is no version of it: nothing would replace it"
    applied = with_live_model(wanted, LIVE)
    assert applied.body["spec"]["predictor"]["model"] == LIVE["spec"]["predictor"]["model"], "arguments wait with them"
    assert applied.body["spec"]["predictor"]["minReplicas"] == 4


def test_replica_number_keeps_its_owner_during_a_rollout() -> None:
    left = without_number(declared(V1), 5)
    assert "minReplicas" not in left.body["spec"]["predictor"]
    assert left.autoscaled == Autoscaled(5)
    scaled = replace(declared(V1, replicas=None), autoscaled=Autoscaled(2))
    assert without_number(scaled, 5) is scaled


# -- one pool's next step ----------------------------------------------------------------------------------------------

URIS = {"v1": V1, "v2": V2}
MOVING = VersionShares("v1", {"v2": 1}, is_moving=True)
AT_V1, AT_V2 = VersionShares("v1", {}), VersionShares("v2", {})


def at(own: int, second: int | None = None, *, uri: str = V1, pods: int | None = None) -> FoundPool:
    seconds = {} if second is None else {NAME: FoundService(V2, second, second, second if pods is None else pods)}
    return FoundPool("a", FoundService(uri, own, own, own), seconds)


def test_second_service_is_created_with_its_first_replica() -> None:
    step = pool_step(at(4), 4, 1, MOVING, URIS)
    assert (step.counts, step.makes, step.is_settled) == ({"": 4, NAME: 1}, {NAME: V2}, False)
    asleep = pool_step(at(0), 0, 1, VersionShares("v1", {}, is_moving=True), URIS)
    assert (asleep.counts, asleep.makes) == ({"": 0}, {})


def test_second_service_is_removed_with_its_last_pod() -> None:
    assert pool_step(at(4, 1), 4, 1, AT_V1, URIS).counts == {"": 4, NAME: 0}
    ending = pool_step(at(4, 0, pods=1), 4, 1, AT_V1, URIS)
    assert (ending.removes, ending.is_settled) == ((), True)
    assert pool_step(at(4, 0), 4, 1, AT_V1, URIS).removes == (NAME,)
    assert not pool_step(at(4, 0), 4, 1, MOVING, URIS).removes, "it is about to get its first one"


def test_undeclared_version_shrinks_as_new_replicas_start() -> None:
    """v1 was dropped from the Model when its rollout ended: requests no longer name their weights."""
    step = pool_step(at(2, 3), 4, 1, AT_V2, {"v2": V2}, by_version=False)
    assert step.counts == {"": 1, NAME: 4}


def test_unmanaged_weights_are_left_alone() -> None:
    assert pool_step(at(4, 1, uri=""), 4, 1, AT_V1, URIS).counts[""] == 4
