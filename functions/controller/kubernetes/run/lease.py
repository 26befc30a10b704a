"""Lease client: reads the Lease, creates it, and replaces it only if no other process did.

No guard protects these writes, since the right to write comes from them. The server protects them: creating an object
twice fails, and a replacement names the version that it replaces.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import urllib3
from kubernetes import client as k8s

from functions.controller.kubernetes.run.election import LeaseRecord, LeaseTiming

_BODY_MAX_BYTES = 1024 * 1024
_TRANSITIONS_MAX = 2**31 - 2  # the field is an int32


class LeaseUnreachable(Exception):
    """The API server gave no usable answer; a write may have arrived or not. Read again."""


class LeaseTaken(Exception):
    """Another process wrote first; read again."""


@dataclass(frozen=True, slots=True)
class LeaseClient:
    """Client of one Lease object. Blocks; any thread may call."""

    api: k8s.ApiClient
    namespace: str
    name: str
    timing: LeaseTiming

    def read(self, timeout_s: float) -> LeaseRecord | None:
        """Return the record, or None if there is no Lease."""
        status, body = self._call("GET", self._path, None, timeout_s)
        return None if status == 404 else _record(body)

    def create(self, me: str, transitions: int, timeout_s: float) -> LeaseRecord:
        lease = self._lease(me, transitions, acquired=_now_text())
        _, body = self._call("POST", self._collection, lease, timeout_s)
        return _record(body)

    def replace(self, me: str, record: LeaseRecord, transitions: int, timeout_s: float) -> LeaseRecord:
        """Write over `record` and return the new record; `transitions` beyond the record's begin a new term. Raise
        LeaseTaken if the Lease was deleted."""
        acquired = record.acquired if transitions == record.transitions and record.acquired else _now_text()
        lease = self._lease(me, transitions, acquired)
        lease["metadata"]["resourceVersion"] = record.resource_version
        status, body = self._call("PUT", self._path, lease, timeout_s)
        if status == 404:
            raise LeaseTaken(f"the Lease {self.name} was deleted")
        return _record(body)

    @property
    def _collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def _path(self) -> str:
        return f"{self._collection}/{self.name}"

    def _lease(self, holder: str, transitions: int, acquired: str) -> dict[str, Any]:
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, round(self.timing.lease_s)),
            "acquireTime": acquired,
            "renewTime": _now_text(),
            "leaseTransitions": min(transitions, _TRANSITIONS_MAX),
        }
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _call(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> tuple[int, Any]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        request = self.api.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            response = self.api.call_api(*request, _request_timeout=timeout_s).response
            content = response.read(_BODY_MAX_BYTES)
            status = int(response.status)
            value = orjson.loads(content)
        except (urllib3.exceptions.HTTPError, k8s.ApiException, OSError, orjson.JSONDecodeError) as error:
            raise LeaseUnreachable(f"{method} {path}: {error}") from error
        if status == 409:
            raise LeaseTaken(f"{method} {path}: {value.get('message', '')}")
        if status >= 300 and not (status == 404 and method != "POST"):
            raise LeaseUnreachable(f"{method} {path}: {status}: {value.get('message', '')}")
        return status, value


def _record(lease: Any) -> LeaseRecord:
    """Return the Lease's record. Hostile or incomplete content is treated like any other: waited out, then replaced."""
    spec = lease.get("spec") or {}
    transitions = spec.get("leaseTransitions")
    return LeaseRecord(
        holder=str(spec.get("holderIdentity") or ""),
        transitions=transitions if isinstance(transitions, int) and 0 <= transitions < _TRANSITIONS_MAX else 0,
        renewed=str(spec.get("renewTime") or ""),
        acquired=str(spec.get("acquireTime") or ""),
        resource_version=str(lease.get("metadata", {}).get("resourceVersion", "")),
    )


def _now_text() -> str:
    """Return the current UTC time as text for people; no decision reads it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
