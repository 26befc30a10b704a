"""Client of the API server: the only file of the target that sends anything.

Law: before each write, and right before it, the guard says whether this process may still write; a write's time limit
ends before its right does, on the server's side too. Everything else is read. Every request has a limit, every
failure is one of `errors`, and nothing is retried here.

Kinds are found by asking their group and version once; a kind that is missing is asked for again each time, so a CRD
that is installed later is found. Blocks; safe to call from several threads.
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
LIST_MAX_ITEMS = 200_000  # over that, something else is wrong
_WRITE_LEAST_S = 0.5  # with less of the lease left, a write is not begun


_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"


class WriteGuard(Protocol):
    """Whether this process may write. Leader election gives the real one."""

    @property
    def token(self) -> int:
        """The fencing token: grows with each leader."""

    def check(self) -> None:
        """LeadershipLost unless this process leads now."""

    def remaining_s(self) -> float:
        """Seconds for which it leads at least, if nothing is renewed."""


@dataclass(slots=True)
class Counts:
    """Requests sent, whether answered or not. Dry runs change nothing and are no writes."""

    reads: int = 0
    dry_runs: int = 0
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    items: tuple[Body, ...]
    resource_version: str  # where a watch may begin


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
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """What was sent until now."""
        with self._lock:
            return Counts(self._counts.reads, self._counts.dry_runs, self._counts.writes)

    @property
    def token(self) -> int:
        return self._guard.token

    # -- reading -----------------------------------------------------------------------------------------------------

    def serves(self, kind: Kind) -> bool:
        """Whether the API server knows the kind now."""
        try:
            self._find(kind)
        except KindMissing:
            return False
        return True

    def path(self, kind: Kind, namespace: str | None, name: str | None = None) -> str:
        """The URL path of a collection or an object, for whoever watches; KindMissing."""
        return self._find(kind).path(namespace, name)

    def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        path = self._find(kind).path(namespace, name)
        answer: Body | None = self._send("get", path, f"get {kind.kind} {namespace}/{name}", kind, none_for_404=True)
        return answer

    def list(self, kind: Kind, namespace: str | None = None, *, label_selector: str | None = None) -> Listing:
        """All objects of a kind, in pages. Items carry apiVersion and kind, which the server leaves out of lists."""
        items: list[Body] = []
        version = ""
        for page in self._pages(kind, namespace, label_selector):
            version = page["metadata"]["resourceVersion"]
            items += [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or []]
            if len(items) > LIST_MAX_ITEMS:
                raise Terminal(f"list {kind}: more than {LIST_MAX_ITEMS} objects")
        return Listing(tuple(items), version)

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
        """The object as it is (dry run: would be) afterwards. With uid and resourceVersion in the body, Stale where the
        object is another one by now."""
        ref = ref_of(body)
        kind = kind_of(body)
        return self._write(
            "patch",
            self._find(kind).path(ref.namespace, ref.name),
            f"{'try' if dry_run else 'apply'} {kind.kind} {ref.namespace}/{ref.name}",
            kind,
            dry_run=dry_run,
            body=body,
            content_type=_APPLY,
            field_manager=manager,
            force_conflicts="true" if force else "false",
            query_params=[("fieldValidation", "Strict")],
        )

    def create(self, body: Body, *, manager: str = FIELD_MANAGER, dry_run: bool = False) -> Body:
        """Stale where an object of the name exists."""
        ref, kind = ref_of(body), kind_of(body)
        asked = f"create {kind.kind} {ref.namespace}/{ref.name}"
        path = self._find(kind).path(ref.namespace)
        return self._write("post", path, asked, kind, dry_run=dry_run, body=body, field_manager=manager)

    def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str = ""
    ) -> Body:
        """Merge into the status subresource; Stale where the object has another resourceVersion than the one given."""
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
        """Set the number of replicas by the scale subresource."""
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
        """For finalizers and annotations of our own CRs, and a node's taint; never for what we apply."""
        path = self._find(kind).path(namespace, name)
        asked = f"patch {kind.kind} {namespace}/{name}"
        return self._write("patch", path, asked, kind, body=patch, content_type=_MERGE, field_manager=FIELD_MANAGER)

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, resource_version: str = "") -> None:
        """In the foreground: dependents first. Only the object with this uid, unchanged where a version is given."""
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
            raise LeadershipLost(f"{asked}: not begun, the right to write ends in {timeout_s:.2f} s")
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
            listing = self._send("get", prefix, f"ask for {kind}", kind, none_for_404=True)
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
        status, body = error.status or 503, error.body or ""  # 0: the library's word for a TLS that failed
        if status != 404:
            raise _as_kube_error(error, status, body, asked) from error
        if is_unknown_kind(body):
            self._served.pop(kind, None)  # the CRD is gone, or not there yet
        elif not none_for_404:
            raise Terminal(f"{asked}: {from_status(404, body, {}, '')}") from error
        if not none_for_404:
            raise KindMissing(f"{asked}: the API server serves no {kind} any more") from error


def _as_kube_error(error: ApiException, status: int, body: bytes | str, asked: str) -> KubeError:
    return from_status(status, body, dict(error.headers or {}), asked)


def _plain(_client: Any, data: Any) -> Any:
    return data
