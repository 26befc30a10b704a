"""CRDs for the test API server: read from files, created and awaited; whole, where the server is not an old one.

Kubernetes 1.20, which tests can run on as well, knows neither CEL rules nor selectable fields, refuses empty-string
defaults, and wants a list-map's keys required or defaulted: it gets them relieved of these. Types, required fields and
pruning stay, so what it accepts is still structurally valid. Descriptions go for size; of several versions only the
stored one stays.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ConflictError

from tests.controller.kubernetes.api_server import minor_version

ESTABLISHED_WAIT_S = 120.0
_FIRST_THAT_TAKES_ALL = 31  # Kubernetes 1.31
_UNKNOWN_TO_OLD_SERVERS = ("x-kubernetes-validations", "selectableFields")
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

INFERENCE_SERVICE = "serving.kserve.io_inferenceservices.yaml"


def read_crds(*files: Path) -> Iterator[dict[str, Any]]:
    """Yield every CustomResourceDefinition in these files."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for file in files:
        with file.open("rb") as stream:
            for document in yaml.load_all(stream, Loader=loader):
                if document and document.get("kind") == "CustomResourceDefinition":
                    yield document


def create_crds(client: DynamicClient, *files: Path) -> list[str]:
    """Create the files' CRDs and wait until they are served. Return all their names, existing ones included."""
    is_old = minor_version(client) < _FIRST_THAT_TAKES_ALL
    names = []
    for each in read_crds(*files):
        crd = _for_old_server(each) if is_old else each
        names.append(crd["metadata"]["name"])
        try:
            client.request("post", _CRDS, body=crd, serializer=_plain)
        except ConflictError:
            continue  # an earlier test created it
    for name in names:
        _await_established(client, name)
    return names


def delete_crd(client: DynamicClient, name: str) -> None:
    client.request("delete", f"{_CRDS}/{name}", serializer=_plain)


def _await_established(client: DynamicClient, name: str) -> None:
    deadline_s = time.monotonic() + ESTABLISHED_WAIT_S
    while time.monotonic() < deadline_s:
        crd = client.request("get", f"{_CRDS}/{name}", serializer=_plain)
        conditions = crd.get("status", {}).get("conditions") or []
        established = any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
        if established and _is_discovered(client, crd):
            return
        time.sleep(0.1)
    raise AssertionError(f"the CRD {name} was not established within {ESTABLISHED_WAIT_S:.0f} s")


def _is_discovered(client: DynamicClient, crd: dict[str, Any]) -> bool:
    group, version = crd["spec"]["group"], crd["spec"]["versions"][0]["name"]
    try:
        listing = client.request("get", f"/apis/{group}/{version}", serializer=_plain)
    except Exception:
        return False
    return any(each["name"] == crd["spec"]["names"]["plural"] for each in listing["resources"])


def _plain(_client: Any, data: Any) -> Any:
    return data


def _for_old_server(crd: dict[str, Any]) -> dict[str, Any]:
    crd = _clean(crd)
    spec = crd["spec"]
    if len(spec["versions"]) > 1:
        spec["versions"] = [version for version in spec["versions"] if version.get("storage")]
    spec.pop("conversion", None)
    crd["metadata"] = {
        "name": crd["metadata"]["name"],
        "annotations": {"api-approved.kubernetes.io": "unapproved, test"},
    }
    crd.pop("status", None)
    return crd


def _clean(node: Any) -> Any:
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _clean(value)
        for key, value in node.items()
        if key not in _UNKNOWN_TO_OLD_SERVERS
        and not (key == "description" and isinstance(value, str))
        and not (key == "default" and value == "")
    }
    keys = kept.get("x-kubernetes-list-map-keys")
    if keys:
        items = kept["items"]
        undefaulted = [key for key in keys if "default" not in items["properties"].get(key, {})]
        items["required"] = sorted({*items.get("required", []), *undefaulted})
    return kept
