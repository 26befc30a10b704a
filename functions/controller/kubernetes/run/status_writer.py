"""Write statuses and finalizers at a bounded rate, each only when it changes something.

`submit` replaces what was pending for an object, so only the latest status is written and the queue stays bounded. A
write carries the observed resourceVersion. If another writer changed the object, the write is refused, and the object
is checked again. A write of ours that the watch has not shown yet is not repeated.

Laws: one write at a time, at most `per_second`; no write outside the term (`KubeApi` checks the guard); a failed
status write never holds up a publication.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal

from functions.api.kinds.base import API_VERSION
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import KindMissing, LeadershipLost, Retryable, Stale, Terminal
from functions.controller.kubernetes.objects import Kind, list_at, version_of
from functions.controller.kubernetes.run.conditions import status_of
from functions.controller.kubernetes.run.event_notes import EventNote, Regarding, notes_of_status
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.controller.kubernetes.run.writes import FINALIZER, PROTECTED, StatusWrite
from functions.decisions.health.backoff import BackoffPolicy, delay_s

PER_SECOND = 50.0
_SHOWN_AGAIN_AFTER_S = 0.05  # time for the watch to show our own write
_BACKOFF = BackoffPolicy(base_s=0.5, cap_s=30.0)

_log = logging.getLogger(__name__)

Current = Callable[[str], WatchedObject | None]


class StatusWriter:
    """Queue of statuses, owned by one event loop; the requests run in worker threads."""

    def __init__(
        self,
        current: Current,
        *,
        per_second: float = PER_SECOND,
        wall_clock: Callable[[], datetime] | None = None,
        on_written: Callable[[Iterable[EventNote]], None] = lambda _: None,
    ) -> None:
        """`current` returns an object by key as the watch shows it now. `on_written` receives their Events."""
        self.problem = ""
        self.writes_total = 0
        self.failures_total = 0
        self._current = current
        self._on_written = on_written
        self._pause_s = 1.0 / per_second
        self._wall_clock = wall_clock or (lambda: datetime.now(UTC))
        self._pending: dict[tuple[str, str], StatusWrite] = {}
        self._against: dict[str, str] = {}  # by key: the version that our last write replaced
        self._wake = asyncio.Event()
        self._failures = 0
        self._under_way = 0

    @property
    def pending(self) -> int:
        """Number of pending writes, including the one under way."""
        return len(self._pending) + self._under_way

    def submit(self, writes: Iterable[StatusWrite]) -> None:
        """Replace the pending writes by those of the newest observation that are not on the objects already."""
        self._pending = {(write.key, write.what): write for write in writes if self._due(write) != "said"}
        self._wake.set()

    async def run(self, api: KubeApi) -> None:
        """Write pending statuses and finalizers, paced, until cancelled; raises LeadershipLost at the end of the
        term."""
        while True:
            if not self._pending:
                self._wake.clear()
                await self._wake.wait()
            else:
                await asyncio.sleep(await self._next(api))

    async def _next(self, api: KubeApi) -> float:
        slot, write = next(iter(self._pending.items()))
        del self._pending[slot]
        self._under_way = 1
        try:
            return await self._attempt(api, slot, write)
        finally:
            self._under_way = 0

    async def _attempt(self, api: KubeApi, slot: tuple[str, str], write: StatusWrite) -> float:
        """Try one write. Return the seconds to wait before the next. A temporary failure, or an object not yet seen as
        our last write left it, is pending again; a lasting failure is logged and dropped."""
        try:
            due = self._due(write)
            if due == "now":
                notes = await asyncio.to_thread(self._send, api, write)
                self.writes_total += 1
                self._on_written(notes)
                self._failures, self.problem = 0, ""
        except (Stale, Retryable) as error:  # Stale: the watch will show what changed
            self.problem = "" if isinstance(error, Stale) else str(error)
            return self._again(slot, write)
        except (Terminal, KindMissing) as error:
            self.failures_total += 1
            if self.problem != str(error):
                _log.error("a status cannot be written: %s", error)
            self.problem = str(error)
            return self._pause_s
        except LeadershipLost:
            self._pending.clear()
            raise
        if due == "later":
            self._pending.setdefault(slot, write)
            return _SHOWN_AGAIN_AFTER_S
        return self._pause_s if due == "now" else 0.0

    def _again(self, slot: tuple[str, str], write: StatusWrite) -> float:
        self._failures += 1
        self.failures_total += 1
        self._pending.setdefault(slot, write)  # a newer status that was submitted meanwhile wins
        return delay_s(self._failures, _BACKOFF)

    def _due(self, write: StatusWrite) -> Literal["now", "later", "said"]:
        stored = self._current(write.key)
        if stored is None or stored.uid != write.stored.uid or stored.generation != write.stored.generation:
            return "said"  # gone or changed; the next observation submits anew
        if self._against.get(write.key) == stored.resource_version:
            return "later"  # our own write is not shown yet
        self._against.pop(write.key, None)
        if write.what == "finalizers":
            return "said" if stored.finalizers == write.finalizers else "now"
        return "said" if self._status(write, stored) is None else "now"

    def _status(self, write: StatusWrite, stored: WatchedObject) -> dict[str, object] | None:
        if write.object_status is None:
            return None
        now = self._wall_clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        return status_of(write.object_status, stored.generation, stored.status, now)

    def _send(self, api: KubeApi, write: StatusWrite) -> list[EventNote]:
        stored = self._current(write.key)
        status = self._status(write, stored) if stored is not None else None
        if stored is None or (write.what == "status" and status is None):
            return []  # gone, or written meanwhile
        version, address = stored.resource_version, (write.kind, stored.namespace, stored.name)
        if status is None:
            metadata = {"finalizers": list(write.finalizers), "resourceVersion": version}
            written = api.merge_patch(*address, {"metadata": metadata})
        else:
            written = api.patch_status(*address, status, resource_version=version)
        if version_of(written) != version:
            self._against[write.key] = version
        if status is None:
            return []
        return list(notes_of_status(Regarding.from_stored(write.kind, stored), stored.status, status))

    def keep_only(self, keys: Iterable[str]) -> None:
        present = set(keys)
        self._against = {key: version for key, version in self._against.items() if key in present}


def release_finalizers(api: KubeApi, namespace: str) -> int:
    """Remove our finalizers from objects that this controller does not watch. Return how many it removed.

    With the git source, custom resources from before stay in the cluster but are no longer in force, so the
    finalizers protect nothing. This runs once a term; the Kubernetes source adds them again when it is the source.
    Blocks; raises KubeError like `api`, and an error leaves the rest for later.
    """
    released = 0
    for kind in (Kind(API_VERSION, name) for name in sorted(PROTECTED)):
        if not api.serves(kind):
            continue
        for item in api.list(kind, namespace).items:
            finalizers = list_at(item, "metadata", "finalizers")
            if FINALIZER not in finalizers:
                continue
            others = [each for each in finalizers if each != FINALIZER]
            metadata = {"finalizers": others, "resourceVersion": version_of(item)}
            api.merge_patch(kind, namespace, item["metadata"]["name"], {"metadata": metadata})
            released += 1
    return released
