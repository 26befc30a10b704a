"""Queue of prompts to tokenize: bounded in number and bytes, each once, and fair between tenants.

A lesson takes as long as its prompt is long (half a second for 200 KB), so whoever sends long prompts could keep the
one thread that learns to itself. Hence as in a fair queue: who has had least of the thread, in bytes, comes next, and
nobody has more than a quarter of the places and of the bytes.

    spent[tenant] += bytes of its lesson         whoever begins to wait starts from the least of those who wait
    worked example (test_long_prompts_of_one_do_not_keep_others_waiting): A has three lessons of 100 KB, B then three of
    1 KB: A, B, B, B, A, A

Neighbours: `prompt_learner` takes from here, on its thread; the event loop puts. Both under one lock, held for
microseconds.
"""

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

from functions.api.ids import TenantId

MAX_JOBS = 128
MAX_BYTES = 16 * 1024 * 1024  # four of the largest bodies
SHARE_RATIO = 0.25  # of either, for one tenant


class TokenizeJob(Protocol):
    """What a lesson must say of itself."""

    @property
    def tenant(self) -> TenantId: ...

    @property
    def body(self) -> bytes: ...

    @property
    def text_blocks(self) -> tuple[int, ...]:
        """Never empty; the last one stands for the whole prompt."""


Job = TypeVar("Job", bound=TokenizeJob)


class _Line(Generic[Job]):
    """One tenant's, in the order of arrival."""

    __slots__ = ("jobs", "spent_bytes", "waiting_bytes")

    def __init__(self, spent_bytes: int) -> None:
        self.jobs: deque[Job] = deque()
        self.spent_bytes = spent_bytes
        self.waiting_bytes = 0


class TokenizeQueue(Generic[Job]):
    """For any number of threads."""

    def __init__(self) -> None:
        self._lines: dict[TenantId, _Line[Job]] = {}  # of those who wait
        self._known: set[int] = set()  # by their last text block
        self._bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, job: Job) -> bool:
        """False where there is no room for it; one that waits already is not put twice."""
        size_bytes = len(job.body)
        with self._changed:
            if job.text_blocks[-1] in self._known:
                return True
            line = self._lines.get(job.tenant) or _Line(self._least_spent_bytes())
            if self._is_closed or not self._has_capacity(line, size_bytes):
                return False
            self._lines[job.tenant] = line
            line.jobs.append(job)
            line.waiting_bytes += size_bytes
            self._bytes += size_bytes
            self._known.add(job.text_blocks[-1])
            self._changed.notify()
        return True

    def take(self) -> Job | None:
        """The next one, as soon as there is one; None once the queue is closed."""
        with self._changed:
            while not self._lines and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            lines = self._lines
            tenant = min(lines, key=lambda name: lines[name].spent_bytes)
            line = lines[tenant]
            job = line.jobs.popleft()
            size_bytes = len(job.body)
            line.spent_bytes += size_bytes
            line.waiting_bytes -= size_bytes
            self._bytes -= size_bytes
            self._known.discard(job.text_blocks[-1])
            if not line.jobs:
                del lines[tenant]
        return job

    def close(self) -> None:
        """What waits is forgotten."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_capacity(self, line: _Line[Job], size_bytes: int) -> bool:
        """A tenant's first lesson may be of any size."""
        if len(self._known) >= MAX_JOBS or self._bytes + size_bytes > MAX_BYTES:
            return False
        own_bytes = line.waiting_bytes + size_bytes
        return not line.jobs or (len(line.jobs) < MAX_JOBS * SHARE_RATIO and own_bytes <= MAX_BYTES * SHARE_RATIO)

    def _least_spent_bytes(self) -> int:
        return min((line.spent_bytes for line in self._lines.values()), default=0)
