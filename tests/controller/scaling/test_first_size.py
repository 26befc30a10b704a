"""The first size of a pool: its service's declared number, otherwise its policy's, never the autoscaler's own value."""

import orjson
import pytest

from functions.api import consistency
from functions.controller.kubernetes.objects import AUTOSCALER_MANAGER, INFERENCE_SERVICE
from functions.controller.kubernetes.render import render
from functions.controller.kubernetes.run.object_store import watched_object
from functions.controller.kubernetes.run.selection import validate_document
from functions.controller.local.pools import pools_of
from functions.controller.snapshot.compile import compile_snapshot
from tests.controller.configs import load, pool
from tests.controller.whole import declared

NUMBER = {"f:spec": {"f:predictor": {"f:minReplicas": {}}}}


def policy(least: int = 2, most: int = 4) -> str:
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: AutoscalingPolicy
metadata: {{name: base}}
spec: {{pool: base, replicas: {{min: {least}, max: {most}}}}}
"""


@pytest.mark.parametrize(("bounds", "begins_with"), [("maxReplicas: 4", 2), ("minReplicas: 3, maxReplicas: 4", 3)])
def test_pool_without_a_declared_number_starts_with_its_policys(bounds: str, begins_with: int) -> None:
    uri = "--max-model-len=2048], storageUri: pvc://shoal-models/base, env: ["
    loaded = load(pool(bounds=bounds, args=uri), policy())
    snapshot = compile_snapshot(loaded.objects, {}, epoch=1, revision="r", compiled_unix_s=0.0).snapshot
    assert [(entry.min_replicas, entry.max_replicas) for entry in snapshot.pools] == [(begins_with, 4)]
    assert [each.replicas for each in pools_of(loaded)] == [begins_with]
    seeds = [each.autoscaled.seed for each in render(loaded, "r").desired.objects if each.autoscaled is not None]
    assert seeds == [begins_with]


@pytest.mark.parametrize(("least", "most"), [(3, 4), (1, 1)])
@pytest.mark.parametrize("manager", [AUTOSCALER_MANAGER, "kubectl"])
def test_policy_is_checked_against_the_declared_number_only(least: int, most: int, manager: str) -> None:
    """A floor is raised and a cap lowered while the pool is at 2. If another party declares the 2, it still counts."""
    entries = [{"manager": manager, "operation": "Apply", "fieldsV1": NUMBER}]
    item = {
        "metadata": {"name": "base", "labels": {"shoal.dev/pool": "base"}, "managedFields": entries},
        "spec": {
            "predictor": {
                "minReplicas": 2,
                "maxReplicas": 4,
                "model": {"modelFormat": {"name": "vLLM"}, "args": ["--max-model-len=2048"]},
            }
        },
    }
    live = watched_object(item, INFERENCE_SERVICE.api_version, INFERENCE_SERVICE.kind)
    service = validate_document("inferenceservices/base", live.document).declared
    assert service is not None
    spec = {"pool": "base", "replicas": {"min": least, "max": most}}
    scaling = declared(
        "autoscalingpolicies/base",
        {"apiVersion": "shoal.dev/v1alpha1", "kind": "AutoscalingPolicy", "metadata": {"name": "base"}, "spec": spec},
    )
    found = [str(problem) for problem in consistency.problems([service, scaling], complete=True)]
    assert len(found) == (1 if manager == "kubectl" else 0), found
    written = orjson.loads(live.document)["spec"]["predictor"]
    assert written.get("minReplicas") == (2 if manager == "kubectl" else None)
    assert written["maxReplicas"] == 4
