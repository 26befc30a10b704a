"""Configuration that a cluster stores as objects, without the fields that servers add.

A replica number that the autoscaler wrote is omitted, because it is not declared. InferenceServices that are not pools
of shoal, and those that the controller created for a version of a pool, are omitted too.
"""

from collections.abc import Iterator

from functions.api.kinds.inference_service import is_pool
from functions.cli.cluster.access import Body, Cluster
from functions.cli.cluster.facts import OWN_KINDS
from functions.cli.cluster.finding import labels_of
from functions.controller.kubernetes.objects import INFERENCE_SERVICE
from functions.controller.kubernetes.ownership import declared_by_autoscaler_alone

_OWN = "shoal.dev/v1alpha1"
_KEPT = ("name", "namespace", "labels", "annotations")


def declared_objects(cluster: Cluster) -> list[Body]:
    return [*_own(cluster), *_pools(cluster)]


def _own(cluster: Cluster) -> Iterator[Body]:
    for plural in OWN_KINDS:
        path = f"/apis/{_OWN}/namespaces/{cluster.choice.system}/{plural}"
        kind = str((cluster.get(path, limit="1") or {}).get("kind", "")).removesuffix("List")
        for item in cluster.list(path):
            yield _written(item, _OWN, kind)


def _pools(cluster: Cluster) -> Iterator[Body]:
    version, kind = INFERENCE_SERVICE.api_version, INFERENCE_SERVICE.kind
    for item in cluster.list(f"/apis/{version}/namespaces/{cluster.choice.models}/inferenceservices"):
        if not is_pool(labels_of(item)):
            continue
        body = _written(item, version, kind)
        if declared_by_autoscaler_alone(item):
            body["spec"]["predictor"].pop("minReplicas", None)
        yield body


def _written(item: Body, api_version: str, kind: str) -> Body:
    """Return the object as it would be written, with the apiVersion and kind that items of a list lack."""
    metadata = {key: item["metadata"][key] for key in _KEPT if item["metadata"].get(key)}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": item["spec"]}
