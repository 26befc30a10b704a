"""Client of the Kubernetes API server for reads and guarded writes.

Before each write, the guard checks that this process still leads. The write's timeout, also on the server, ends
before the term does. Reads and dry runs need no term. Every request has a timeout, every failure is one of `errors`,
none is retried.

A kind is found by listing its group and version once. A missing kind is looked up again on each request, so that a
CRD installed later is found. Calls block and are safe from several threads.

Other clients: `run.lease` writes the Lease, `run.watch_client` lists and watches.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from urllib3.exceptions import HTTPError

from functions.controller.kubernetes.errors import (
    KindMissing,
    KubeError,
    LeadershipLost,
    Retryable,
    Terminal,
    from_status,
    is_unknown_kind,
)
from functions.controller.kubernetes.objects import FIELD_MANAGER, Body, Kind, kind_of, ref_of

CONNECT_TIMEOUT_S = 5.0
PAGE_ITEMS = 500
LIST_MAX_ITEMS = 200_000  # a longer list is an error
_WRITE_LEAST_S = 0.5  # with less of the term left, no write is started


_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


class WriteGuard(Protocol):
    """The right of this process to write. Leader election provides the implementation."""

    @property
    def token(self) -> int:
        """Fencing token, which grows with each leader."""

    def check(self) -> None:
        """Raise LeadershipLost unless this process leads now."""

    def remaining_s(self) -> float:
        """Return the seconds for which this process leads at least, if nothing is renewed."""


@dataclass(slots=True)
class ApiRequestCounts:
    """Number of requests sent, answered or not. Dry runs change nothing, so they are not writes."""

    reads: int = 0
    dry_runs: int = 0
    writes: int = 0


@dataclass(frozen=True, slots=True)
class ObjectListing:
    items: tuple[Body, ...]
    resource_version: str  # start of a watch


@dataclass(frozen=True, slots=True)
class _Served:
    prefix: str  # `/apis/policy/v1`
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str | None = None, subresource: str = "") -> str:
        parts = [self.prefix]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


class KubeApi:
    def __init__(self, client: DynamicClient, guard: WriteGuard, *, timeout_s: float = 20.0) -> None:
        self._client = client
        self._guard = guard
        self._timeout_s = timeout_s
        self._served: dict[Kind, _Served] = {}
        self._lock = threading.Lock()
        self._counts = ApiRequestCounts()

    @property
    def counts(self) -> ApiRequestCounts:
        """Numbers of requests sent so far: reads, dry runs and writes."""
        with self._lock:
            return ApiRequestCounts(self._counts.reads, self._counts.dry_runs, self._counts.writes)

    @property
    def token(self) -> int:
        return self._guard.token

    # -- reading -----------------------------------------------------------------------------------------------------

    def serves(self, kind: Kind) -> bool:
        """Return True if the API server knows the kind now."""
        try:
            self._find(kind)
        except KindMissing:
            return False
        return True

    def path(self, kind: Kind, namespace: str | None, name: str | None = None) -> str:
        """Return the URL path of a collection or an object, or raise KindMissing."""
        return self._find(kind).path(namespace, name)

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        path = self._find(kind).path(namespace, name)
        answer: Body | None = self._send("get", path, f"get {kind.kind} {namespace}/{name}", kind, none_for_404=True)
        return answer

    def list(self, kind: Kind, namespace: str | None = None, *, label_selector: str | None = None) -> ObjectListing:
        """Return all objects of a kind, read in pages. Items get apiVersion and kind, which lists leave out. Raise
        Terminal if there are more than LIST_MAX_ITEMS."""
        items: list[Body] = []
        version = ""
        for page in self._pages(kind, namespace, label_selector):
            version = page["metadata"]["resourceVersion"]
            items += [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or []]
            if len(items) > LIST_MAX_ITEMS:
                raise Terminal(f"list {kind}: over the limit of {LIST_MAX_ITEMS} objects")
        return ObjectListing(tuple(items), version)

    def _pages(self, kind: Kind, namespace: str | None, label_selector: str | None) -> Iterator[Body]:
        path = self._find(kind).path(namespace)
        more: str | None = None
        while more is None or more:
            page = self._send(
                "get", path, f"list {kind}", kind, limit=PAGE_ITEMS, _continue=more, label_selector=label_selector
            )
            more = page["metadata"].get("continue") or ""
            yield page

    # -- writing -----------------------------------------------------------------------------------------------------

    def server_side_apply(
        self, body: Body, *, manager: str = FIELD_MANAGER, dry_run: bool = False, force: bool = False
    ) -> Body:
        """Apply the object and return it as it is (dry run: would be) afterwards. If the body has uid and
        resourceVersion and the live object has others, raise Stale."""
        ref = ref_of(body)
        kind = kind_of(body)
        return self._write(
            "patch",
            self._find(kind).path(ref.namespace, ref.name),
            f"{'dry-run' if dry_run else 'apply'} {kind.kind} {ref.namespace}/{ref.name}",
            kind,
            dry_run=dry_run,
            body=body,
            content_type=_APPLY,
            field_manager=manager,
            force_conflicts="true" if force else "false",
            query_params=[("fieldValidation", "Strict")],
        )

    def create(self, body: Body, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Body:
        """Create the object and return it, or raise Stale if one of that name exists."""
        ref, kind = ref_of(body), kind_of(body)
        asked = f"create {kind.kind} {ref.namespace}/{ref.name}"
        path = self._find(kind).path(ref.namespace)
        return self._write("post", path, asked, kind, dry_run=dry_run, body=body, field_manager=manager)

    def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str = ""
    ) -> Body:
        """Merge `status` into the status subresource and return the object. Raise Stale if it no longer has the given
        resourceVersion (empty: any)."""
        metadata = {"resourceVersion": resource_version} if resource_version else {}
        return self._write(
            "patch",
            self._find(kind).path(namespace, name, "status"),
            f"write the status of {kind.kind} {namespace}/{name}",
            kind,
            body={"metadata": metadata, "status": dict(status)},
            content_type=_MERGE,
            field_manager=FIELD_MANAGER,
        )

    def scale(self, kind: Kind, namespace: str, name: str, replicas: int, *, manager: str) -> Body:
        """Set the number of replicas through the object's scale subresource, and return the answer."""
        return self._write(
            "patch",
            self._find(kind).path(namespace, name, "scale"),
            f"scale {kind.kind} {namespace}/{name}",
            kind,
            body={"spec": {"replicas": replicas}},
            content_type=_MERGE,
            field_manager=manager,
        )

    def merge_patch(self, kind: Kind, namespace: str, name: str, patch: Body) -> Body:
        """Merge-patch an object and return it. Used for what is not applied: finalizers, annotations, node taints,
        Events."""
        path = self._find(kind).path(namespace, name)
        asked = f"patch {kind.kind} {namespace}/{name}"
        return self._write("patch", path, asked, kind, body=patch, content_type=_MERGE, field_manager=FIELD_MANAGER)

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, resource_version: str = "") -> None:
        """Delete in the foreground, dependents first: only with this uid and, if given, resourceVersion. Do nothing if
        the object is gone."""
        preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
            "preconditions": preconditions,
        }
        path = self._find(kind).path(namespace, name)
        asked = f"delete {kind.kind} {namespace}/{name}"
        self._write("delete", path, asked, kind, body=options, none_for_404=True)

    def _write(
        self, method: str, path: str, asked: str, kind: Kind, *, dry_run: bool = False, **parameters: Any
    ) -> Body:
        if dry_run:
            tried: Body = self._send(method, path, asked, kind, counted="dry_runs", dry_run="All", **parameters)
            return tried
        self._guard.check()
        timeout_s = min(self._timeout_s, self._guard.remaining_s())
        if timeout_s < _WRITE_LEAST_S:
            raise LeadershipLost(f"{asked}: not sent, since this controller's term ends in {timeout_s:.2f} s")
        query = [*parameters.pop("query_params", []), ("timeout", f"{timeout_s:.3f}s")]
        written: Body = self._send(
            method, path, asked, kind, counted="writes", timeout_s=timeout_s, query_params=query, **parameters
        )
        return written

    # -- requests ----------------------------------------------------------------------------------------------------

    def _find(self, kind: Kind) -> _Served:
        served = self._served.get(kind)
        if served is None:
            prefix = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
            listing = self._send("get", prefix, f"look up {kind}", kind, none_for_404=True)
            resources = (listing or {}).get("resources") or []
            found = [each for each in resources if each.get("kind") == kind.kind and "/" not in each.get("name", "")]
            if not found:
                raise KindMissing(f"the API server serves no {kind}: is its CRD installed?")
            served = self._served[kind] = _Served(prefix, found[0]["name"], bool(found[0]["namespaced"]))
        return served

    def _send(
        self,
        method: str,
        path: str,
        asked: str,
        kind: Kind,
        *,
        counted: str = "reads",
        none_for_404: bool = False,
        timeout_s: float | None = None,
        **parameters: Any,
    ) -> Any:
        with self._lock:
            setattr(self._counts, counted, getattr(self._counts, counted) + 1)
        limit = timeout_s if timeout_s is not None else self._timeout_s
        timeout = (min(CONNECT_TIMEOUT_S, limit), limit)
        try:
            return self._client.request(method, path, serializer=_plain, _request_timeout=timeout, **parameters)
        except ApiException as error:
            return self._refused(error, asked, kind, none_for_404=none_for_404)
        except (HTTPError, OSError) as error:
            raise Retryable(f"{asked}: {type(error).__name__}: {error}") from error

    def _refused(self, error: ApiException, asked: str, kind: Kind, *, none_for_404: bool) -> None:
        status, body = error.status or 503, error.body or ""  # 0: the library's status for a failed TLS handshake
        if status != 404:
            raise _as_kube_error(error, status, body, asked) from error
        if is_unknown_kind(body):
            self._served.pop(kind, None)  # the CRD is gone or not installed yet
        elif not none_for_404:
            raise Terminal(f"{asked}: {from_status(404, body, {}, '')}") from error
        if not none_for_404:
            raise KindMissing(f"{asked}: the API server serves no {kind} any more") from error


def _as_kube_error(error: ApiException, status: int, body: bytes | str, asked: str) -> KubeError:
    return from_status(status, body, dict(error.headers or {}), asked)


def _plain(_client: Any, data: Any) -> Any:
    return data
