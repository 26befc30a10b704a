"""Recorder of Kubernetes Events (events.k8s.io/v1): bounded, aggregated, and never blocking other work.

An Event's name is made of its text and its object. So a repeated statement is the same Event with a higher count
(`series`), from any process, also after a restart. The API server deletes it an hour later.

Laws: at most `per_second` Events are sent. The same one is sent at most each REPEAT_S, with the count of what came in
between. At most MAX_PENDING wait, warnings before the rest. An Event that cannot be sent is dropped and counted: the
state is in the condition. No Event is sent outside the term (`KubeApi` checks the guard).
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import KubeError, LeadershipLost, Retryable, Stale
from functions.controller.kubernetes.objects import Body, Kind, value_at
from functions.controller.kubernetes.run.event_notes import NOTE_MAX_CHARS, EventNote

EVENT = Kind("events.k8s.io/v1", "Event")
CONTROLLER = "shoal.dev/controller"
PER_SECOND = 5.0
REPEAT_S = 60.0
MAX_PENDING = 1000
_MAX_REMEMBERED = 4096
_ATTEMPTS = 3
_RETRY_S = 2.0
_NOTE_MAX_BYTES = 1024
_INSTANCE_MAX_CHARS = 128
_NAME_MAX_CHARS = 200

Outcome = Literal["sent", "dropped", "failed"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pending:
    note: EventNote
    count: int
    due_s: float
    failures: int = 0


class EventRecorder:
    """Queue of Events, owned by one event loop; the requests run in worker threads."""

    def __init__(
        self,
        instance: str,
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        *,
        per_second: float = PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`instance` names this process."""
        self._instance = instance[:_INSTANCE_MAX_CHARS]
        self._on_outcome = on_outcome
        self._pause_s = 1.0 / per_second
        self._clock, self._wall_clock = clock, wall_clock
        self._pending: dict[str, _Pending] = {}  # by the Event's name
        self._sent_s: dict[str, float] = {}  # by the Event's name, the latest last
        self._wake = asyncio.Event()
        self._trouble = ""

    @property
    def pending(self) -> int:
        return len(self._pending)

    def record(self, notes: Iterable[EventNote]) -> None:
        """Queue Events, to be sent as soon as possible. One that is queued already is counted, and one that was sent is
        repeated after REPEAT_S at the earliest. If the queue is full, the new one is dropped, or for a warning the
        oldest normal one."""
        for note in notes:
            bounded = replace(note, note=_bounded(note.note))
            name = event_name(bounded)
            known = self._pending.get(name)
            due_s = max(self._clock(), self._sent_s.get(name, float("-inf")) + REPEAT_S)
            if known is not None:
                self._pending[name] = replace(known, count=known.count + 1)
            elif self._has_room(bounded):
                self._pending[name] = _Pending(bounded, 1, due_s)
        self._wake.set()

    def drop_pending(self) -> None:
        """Drop unsent Events at the end of the term."""
        self._pending.clear()

    async def run(self, api: KubeApi) -> None:
        """Send Events until cancelled; raises LeadershipLost at the end of the term."""
        while True:
            name, wait_s = self._next()
            if name is None:
                self._wake.clear()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            await self._attempt(api, name, self._pending.pop(name))
            await asyncio.sleep(self._pause_s)

    # inside

    def _next(self) -> tuple[str | None, float | None]:
        """Return the name of a due Event, warnings first; otherwise None and the seconds until one is due, or None
        twice if none is queued."""
        now_s = self._clock()
        due = [name for name, each in self._pending.items() if each.due_s <= now_s]
        if due:
            return next((name for name in due if self._pending[name].note.type == "Warning"), due[0]), None
        soonest_s = min((each.due_s for each in self._pending.values()), default=None)
        return None, soonest_s - now_s if soonest_s is not None else None

    def _has_room(self, note: EventNote) -> bool:
        if len(self._pending) < MAX_PENDING:
            return True
        self._on_outcome("dropped")
        oldest = next((name for name, each in self._pending.items() if each.note.type == "Normal"), None)
        if note.type == "Warning" and oldest is not None:
            del self._pending[oldest]
            return True
        return False

    async def _attempt(self, api: KubeApi, name: str, pending: _Pending) -> None:
        try:
            await asyncio.to_thread(self._send, api, name, pending)
        except LeadershipLost:
            raise
        except KubeError as error:
            self._failed(name, pending, error)
            return
        self._trouble = ""
        self._sent_s.pop(name, None)
        self._sent_s[name] = self._clock()
        if len(self._sent_s) > _MAX_REMEMBERED:
            del self._sent_s[next(iter(self._sent_s))]
        self._on_outcome("sent")

    def _failed(self, name: str, pending: _Pending, error: KubeError) -> None:
        failures = pending.failures + 1
        if isinstance(error, Retryable) and failures < _ATTEMPTS:
            again = replace(pending, failures=failures, due_s=self._clock() + _RETRY_S)
            self._pending.setdefault(name, again)
            return
        if str(error) != self._trouble:
            _log.warning("an Event cannot be written: %s", error)
        self._trouble = str(error)
        self._on_outcome("failed")

    def _send(self, api: KubeApi, name: str, pending: _Pending) -> None:
        """Create the Event, or increase the count of the existing one by that of `pending`; raise Stale if it was
        deleted in between. Blocks."""
        now = self._wall_clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        namespace = pending.note.regarding.namespace
        try:
            api.create(self._body(name, pending, now))
        except Stale:
            known = api.get(EVENT, namespace, name)
            if known is None:
                raise  # deleted in between: the next attempt creates it
            count = value_at(known, "series", "count")
            series = {"count": (count if isinstance(count, int) else 1) + pending.count, "lastObservedTime": now}
            api.merge_patch(EVENT, namespace, name, {"series": series})

    def _body(self, name: str, pending: _Pending, now: str) -> Body:
        note, regarding = pending.note, pending.note.regarding
        body: Body = {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": regarding.namespace},
            "eventTime": now,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": note.action,
            "reason": note.reason,
            "type": note.type,
            "note": note.note,
            "regarding": {
                "apiVersion": regarding.kind.api_version,
                "kind": regarding.kind.kind,
                "namespace": regarding.namespace,
                "name": regarding.name,
                "uid": regarding.uid,
            },
        }
        if pending.count > 1:
            body["series"] = {"count": pending.count, "lastObservedTime": now}
        return body


def event_name(note: EventNote) -> str:
    """Return the same name for the same statement about the same object."""
    said = "\0".join((note.regarding.uid, note.type, note.reason, note.note))
    name = note.regarding.name[:_NAME_MAX_CHARS].rstrip(".-")
    return f"{name}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def _bounded(text: str) -> str:
    """Cut the text to the API server's limits for characters and for bytes; a cut text ends with `…`."""
    cut = text if len(text) <= NOTE_MAX_CHARS else text[: NOTE_MAX_CHARS - 1] + "…"
    encoded = cut.encode()
    return cut if len(encoded) <= _NOTE_MAX_BYTES else encoded[: _NOTE_MAX_BYTES - 3].decode(errors="ignore") + "…"
