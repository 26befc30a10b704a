"""Second services of a pool: an InferenceService for a version that the pool's own one does not have, and its budget.

A second service is a copy of the pool's own one with another storageUri and its own number. It has the same labels,
so that whatever selects the pool's pods selects these too, and one more, by which lists of pools leave it out. The
pool's service owns it, so it is deleted with it. It is not declared anywhere: it is applied under its own field
manager and is in no inventory.

If the pool's service is declared with these very weights, the second one copies the declaration, else the live
service. The declaration has them while a commit that changes storageUri is held back.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from functions.api.kinds.inference_service import POOL_LABEL, VERSION_OF_LABEL
from functions.controller.kubernetes.objects import (
    INFERENCE_SERVICE,
    Body,
    Kind,
    mapping_at,
    uid_of,
    value_at,
)
from functions.controller.kubernetes.render import budget_body
from functions.controller.kubernetes.versions.staged import served_uri
from functions.controller.kubernetes.webhook_rules import AUTOSCALER_ANNOTATION

VERSIONS_MANAGER = "shoal-versions"
NAME_MAX_CHARS = 40  # KServe and Kubernetes add to it: `-predictor`, a ReplicaSet's hash, a pod's
_HASH_CHARS = 6
_NOT_COPIED = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
_OWN_NUMBERS = ("minReplicas", "maxReplicas")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")


def service_name(own: str, version: str, uri: str) -> str:
    """Return `<service>-<version>-<hash>`, cut to the length that names may have; the same for the same arguments."""
    digest = hashlib.blake2b(f"{own}\n{version}\n{uri}".encode(), digest_size=8).hexdigest()[:_HASH_CHARS]
    words = _NOT_IN_NAMES.sub("-", f"{own}-{version}".lower())[: NAME_MAX_CHARS - _HASH_CHARS - 1]
    return f"{words.strip('-')}-{digest}"


def uri_of(service: Mapping[str, Any]) -> str:
    """Return the `shoal://` weights that the service names, or an empty text."""
    return served_uri(str(value_at(service, "spec", "predictor", "model", "storageUri") or ""))


def is_second(service: Mapping[str, Any]) -> bool:
    return VERSION_OF_LABEL in mapping_at(service, "metadata", "labels")


def pool_of(service: Mapping[str, Any]) -> str:
    return str(mapping_at(service, "metadata", "labels").get(POOL_LABEL, ""))


def second_service(own: Body, declared: Body | None, name: str, uri: str, replicas: int) -> Body:
    """Build the second service, which serves the weights `uri`, as a child of `own`, the pool's live service. The rest
    is copied from `declared`, the service in git, if that has these weights; otherwise from `own`."""
    template = declared if declared is not None and uri_of(declared) == uri else own
    predictor = {key: value for key, value in template["spec"]["predictor"].items() if key not in _OWN_NUMBERS}
    model = {**mapping_at(predictor, "model"), "storageUri": uri}
    annotations = {
        key: value for key, value in mapping_at(template, "metadata", "annotations").items() if key not in _NOT_COPIED
    }
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {
            "name": name,
            "namespace": own["metadata"]["namespace"],
            "labels": {**mapping_at(template, "metadata", "labels"), VERSION_OF_LABEL: pool_of(own)},
            "annotations": {**annotations, AUTOSCALER_ANNOTATION: "none"},
            "ownerReferences": [_owner(own)],
        },
        "spec": {"predictor": {**predictor, "model": model, "minReplicas": replicas}},
    }


def second_budget(own: Body, name: str, kind: Kind) -> Body:
    body = budget_body(name, pool_of(own), own["metadata"]["namespace"], kind)
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [_owner(own)]}}


def is_as_wanted(wanted: Any, live: Any) -> bool:
    """Return True if everything wanted is in `live`; other keys, which the server and KServe added, are no difference,
    but lists must have the same length."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(is_as_wanted(value, live.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        same_length = isinstance(live, list) and len(wanted) == len(live)
        return same_length and all(map(is_as_wanted, wanted, live))
    return bool(wanted == live)


def _owner(own: Body) -> Body:
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "name": own["metadata"]["name"],
        "uid": uid_of(own),
    }
