"""Check pools and base models: the claim of the weights, the agent's settings, the digest of the base."""

from collections.abc import Callable, Iterator, Mapping

from functions.api.kinds.base import API_VERSION
from functions.api.kinds.inference_service import POOL_LABEL, max_adapters, max_lora_rank
from functions.artifacts.manifest import MANIFEST_NAME
from tests.manifests.rendering import Document, Rendering, name_of
from tests.manifests.workloads import runtime_of

_PVC = "pvc://"
# Deprecated annotations that repeat the engine's arguments: read for one more version; a difference is a finding.
_REPEATED: Mapping[str, Callable[[tuple[str, ...]], int | None]] = {
    "shoal.dev/max-adapters": max_adapters,
    "shoal.dev/max-lora-rank": max_lora_rank,
}


def model_findings(rendering: Rendering) -> Iterator[str]:
    for service in rendering.of("InferenceService"):
        yield from (f"{name_of(service)}: {each}" for each in _pool(service, rendering))
    manifests = _mounted_manifests(rendering)
    for model in rendering.of("Model"):
        for version in model["spec"]["versions"] if model["apiVersion"] == API_VERSION else []:
            folder = version["artifact"].removeprefix(_PVC).partition("/")[2]
            if version["artifact"].startswith(_PVC) and "digest" not in version and folder not in manifests:
                yield f"{name_of(model)}: no digest, and the controller has no manifest of {folder}"


def _pool(service: Document, rendering: Rendering) -> Iterator[str]:
    metadata, model = service["metadata"], service["spec"]["predictor"]["model"]
    claim, _, folder = model["storageUri"].removeprefix(_PVC).partition("/")
    if model["storageUri"].startswith(_PVC) and (claim, metadata["namespace"]) not in _claims(rendering):
        yield f"there is no claim {claim} for {folder}"
    if POOL_LABEL not in metadata.get("labels", {}):
        return
    if runtime_of(service, rendering) is None:
        yield "no ServingRuntime of its namespace takes its format: no agent would run beside it"
    arguments = tuple(model.get("args", []))
    yield from _repeated(arguments, metadata.get("annotations", {}))


def _repeated(arguments: tuple[str, ...], annotations: dict[str, str]) -> Iterator[str]:
    for annotation, of_engine in _REPEATED.items():
        said, given = annotations.get(annotation), of_engine(arguments)
        if said is not None and given is not None and said != str(given):
            yield f"{annotation} says {said}, and the engine's arguments {given}: leave it out"


def _claims(rendering: Rendering) -> set[tuple[str, str]]:
    claims = rendering.of("PersistentVolumeClaim")
    return {(claim["metadata"]["name"], claim["metadata"]["namespace"]) for claim in claims}


def _mounted_manifests(rendering: Rendering) -> set[str]:
    """Folders whose manifest the controller finds below its models root."""
    volumes = rendering.one("Deployment", "controller")["spec"]["template"]["spec"]["volumes"]
    items = [item for volume in volumes for item in volume.get("configMap", {}).get("items", [])]
    return {item["path"].removesuffix(f"/{MANIFEST_NAME}") for item in items}
