"""Check documents against the schemas of their CRDs (KServe, Knative, shoal), and shoal's kinds against the loader."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

from functions.api.kinds import inference_service
from functions.api.kinds.base import API_VERSION
from functions.api.loader import load_texts
from functions.api.problems import ConfigInvalid
from functions.controller.kubernetes import webhook_rules
from tests.manifests.rendering import MANIFESTS, Document, Rendering, name_of
from tests.manifests.structural import unknown_or_wrong, validators

OWN_CRDS = MANIFESTS / "base" / "crds"
OF_KUBERNETES = {
    "v1",
    "apps/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1",
}
OF_KUBERNETES |= {"apiextensions.k8s.io/v1"}


class Check(Protocol):
    def __call__(self, rendering: Rendering) -> Iterator[str]: ...


def schema_findings(foreign_crds: Path) -> Check:
    """Return the schema check, bound to the folder with the CRDs of KServe and Knative."""
    return partial(_schema_findings, foreign_crds)


def _schema_findings(foreign_crds: Path, rendering: Rendering) -> Iterator[str]:
    known = {**validators(foreign_crds), **validators(OWN_CRDS)}
    for document in rendering.documents:
        validator = known.get((document["apiVersion"], document["kind"]))
        if validator is not None:
            yield from (f"{name_of(document)}: {each}" for each in unknown_or_wrong(validator, document))
        elif document["apiVersion"] not in OF_KUBERNETES:
            yield f"{name_of(document)}: no CRD says what {document['apiVersion']} {document['kind']} is"


def own_kind_findings(rendering: Rendering) -> Iterator[str]:
    """Yield what shoal's loader finds in all policies, tenants, models and pools together."""
    own = [each for each in rendering.documents if _is_read(each)]
    try:
        loaded = load_texts([(f"{name_of(each)}.yaml", json.dumps(each).encode()) for each in own])
    except ConfigInvalid as error:
        yield from (str(problem) for problem in error.problems)
    else:
        yield from (str(problem) for problem in loaded.ignored)


def webhook_findings(rendering: Rendering) -> Iterator[str]:
    """Yield what KServe's webhooks would reject; their rules are in no schema."""
    for service in rendering.of("InferenceService"):
        for path, message in webhook_rules.findings(service):
            yield f"{name_of(service)}: {'.'.join(str(key) for key in path)}: {message}"


def _is_read(document: Document) -> bool:
    """Return True for shoal's kinds and for pools, but not for services on a runtime of the cluster."""
    if document["apiVersion"] != inference_service.API_VERSION:
        return bool(document["apiVersion"] == API_VERSION)
    labelled = inference_service.POOL_LABEL in document["metadata"].get("labels", {})
    return labelled or "runtime" not in document["spec"]["predictor"]["model"]
