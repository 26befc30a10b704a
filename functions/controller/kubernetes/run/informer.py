"""Informer of one kind: list, then watch, for ever; keeps an `ObjectStore` equal to the API server's objects.

A list is read in pages, all of one version. A watch begins at that version, and bookmarks advance it, so that a new
connection begins where the last one ended. Objects are listed again when the version has expired (410, as a status or
inside the stream), and every `relist_s`, since even a server may lose an event. The server ends a watch after
`watch_s`, and the informer after `silence_s` without a byte: newer servers send a bookmark every minute.

A kind that the server does not know is waited for and reported in `problem`; it is no error of the process.

Neighbours: `watch_client` reads, `object_store` stores, `on_change` wakes `loop`.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from functions.controller.kubernetes.errors import Gone, KindMissing, Retryable
from functions.controller.kubernetes.run.object_store import ObjectStore, TooManyObjects, WatchedObject, watched_object
from functions.controller.kubernetes.run.watch_client import Cut, WatchClient
from functions.decisions.health.backoff import BackoffPolicy, delay_s

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchedKind:
    """One kind in one namespace, or without one (empty), with selectors as Kubernetes writes them."""

    api_version: str
    kind: str
    plural: str
    namespace: str
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        root = "/apis/" if "/" in self.api_version else "/api/"
        within = f"namespaces/{self.namespace}/" if self.namespace else ""
        return f"{root}{self.api_version}/{within}{self.plural}"

    @property
    def selectors(self) -> dict[str, str]:
        both = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: text for name, text in both.items() if text}


@dataclass(frozen=True, slots=True)
class InformerTiming:
    page_objects: int = 500  # page size of Kubernetes' own clients
    page_timeout_s: float = 60.0
    watch_s: float = 300.0
    silence_s: float = 130.0
    shortest_watch_s: float = 1.0
    relist_s: float = 3600.0
    missing_kind_s: float = 5.0  # between two lists of a kind that is not installed
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(base_s=0.5, cap_s=30.0))


class Informer:
    """List and watch of one kind. `run` belongs to one thread; any thread may use `problem`, `store` and `stop`."""

    def __init__(
        self,
        client: WatchClient,
        watched: WatchedKind,
        on_change: Callable[[], None],
        timing: InformerTiming | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.watched = watched
        self.store = ObjectStore()
        self.problem = f"{watched.kind}: not listed yet"
        self.lists_total = 0
        self._client = client
        self._on_change = on_change
        self._timing = timing or InformerTiming()
        self._rng = rng or random.Random()  # noqa: S311 - spreads connections; guards nothing
        self._version = ""  # start of the next watch; empty: list first
        self._listed_at_s = 0.0
        self._failures = 0
        self._stopped = threading.Event()
        self._cut: Cut | None = None  # ends the watch under way

    def run(self) -> None:
        """List and watch until `stop`. Temporary errors are logged, not raised."""
        while not self._stopped.is_set():
            self._stopped.wait(self._list_and_watch())

    def stop(self) -> None:
        self._stopped.set()
        cut = self._cut
        if cut is not None:
            with suppress(OSError, RuntimeError, ValueError):  # the watch has ended meanwhile
                cut()

    def _list_and_watch(self) -> float:
        """List if due, and watch once. Return the seconds to wait before the next call."""
        try:
            if not self._version or time.monotonic() - self._listed_at_s > self._timing.relist_s:
                self._list()
            began_s = time.monotonic()
            self._watch()
            if time.monotonic() - began_s < self._timing.shortest_watch_s:
                return self._timing.shortest_watch_s  # spare a server that ends watches immediately
        except Gone as error:
            _log.info("%s; listing again", error)
            self._version = ""
        except KindMissing:
            return self._wait_for_the_kind()
        except (Retryable, TooManyObjects) as error:
            return self._try_again(str(error))
        return 0.0

    def _list(self) -> None:
        query = {"limit": str(self._timing.page_objects), **self.watched.selectors}
        listed: list[WatchedObject] = []
        page: dict[str, Any] = {}
        while not self._stopped.is_set():
            page = self._client.page(self.watched.path, query, self._timing.page_timeout_s)
            listed.extend(self._stored(item) for item in page.get("items", ()))
            token = page["metadata"].get("continue", "")
            if not token:
                break
            query["continue"] = token
        else:
            return
        self._version = page["metadata"]["resourceVersion"]
        self._listed_at_s = time.monotonic()
        self.lists_total += 1
        self._failures, self.problem = 0, ""
        if self.store.replace_all(listed, self._version):
            self._on_change()

    def _watch(self) -> None:
        watch_s = self._timing.watch_s * self._rng.uniform(0.8, 1.2)  # so that watches do not end together
        query = {
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(watch_s))),
            **self.watched.selectors,
        }
        for event in self._client.events(self.watched.path, query, self._timing.silence_s, self._opened):
            self._failures = 0
            self._apply_event(event)
            if self._stopped.is_set():
                return

    def _opened(self, cut: Cut) -> None:
        self._cut, self.problem = cut, ""
        if self._stopped.is_set():
            cut()

    def _apply_event(self, event: dict[str, Any]) -> None:
        item = event["object"]
        is_change = False
        match event["type"]:
            case "ADDED" | "MODIFIED":
                is_change = self.store.put(self._stored(item))
            case "DELETED":
                is_change = self.store.remove(item["metadata"]["name"], item["metadata"]["resourceVersion"])
        self._version = item["metadata"]["resourceVersion"]  # a bookmark has only a version
        if is_change:
            self._on_change()

    def _stored(self, item: dict[str, Any]) -> WatchedObject:
        return watched_object(item, self.watched.api_version, self.watched.kind)

    def _wait_for_the_kind(self) -> float:
        problem = f"the kind {self.watched.kind} ({self.watched.api_version}) is not installed; waiting for it"
        if self.problem != problem:
            _log.warning("%s", problem)
        self.problem, self._version = problem, ""
        self.store.mark_kind_missing()
        return self._timing.missing_kind_s

    def _try_again(self, reason: str) -> float:
        """Record a failure, log it if it is new, and return the delay in seconds. The version is kept: the next watch
        begins where this one ended."""
        self._failures += 1
        if self.problem != reason and not self._stopped.is_set():
            _log.warning("%s", reason)
        self.problem = reason
        return delay_s(self._failures, self._timing.backoff) * self._rng.uniform(0.5, 1.0)
