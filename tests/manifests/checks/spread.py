"""Check that a pool's pods spread over zones and nodes by their own labels, and that none stays pending for it."""

from collections.abc import Iterator

from functions.api.kinds.inference_service import POOL_LABEL
from tests.manifests.rendering import Document, Rendering, name_of

_OVER = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")


def spread_findings(rendering: Rendering) -> Iterator[str]:
    for service in rendering.of("InferenceService"):
        if POOL_LABEL in service["metadata"].get("labels", {}):
            yield from (f"{name_of(service)}: {each}" for each in _pool(service))


def _pool(service: Document) -> Iterator[str]:
    labels = service["metadata"]["labels"]  # KServe copies them to the pods
    constraints = {
        each["topologyKey"]: each for each in service["spec"]["predictor"].get("topologySpreadConstraints", [])
    }
    yield from (f"nothing spreads its pods over {key}" for key in _OVER if key not in constraints)
    for key, constraint in constraints.items():
        if constraint["whenUnsatisfiable"] != "ScheduleAnyway":
            yield f"with a domain of {key} gone, its pods would stay pending"
        selected = constraint["labelSelector"]["matchLabels"]
        if selected != {POOL_LABEL: labels[POOL_LABEL]}:
            yield f"over {key} pods with {selected} are counted, and not its own"
