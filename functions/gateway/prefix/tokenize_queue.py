"""Queue of prompts to tokenize: limited in number and bytes, without duplicates, and fair between tenants.

A job takes as long as its prompt is long (half a second for 200 KB), so a tenant with long prompts could monopolize
the thread. The queue therefore serves the tenant that has used the thread least, in bytes. A tenant has at most a
quarter of the jobs and of the bytes.

    spent[tenant] += bytes of its job         a tenant that starts to wait begins with the least of the waiting ones
    worked example (test_long_prompts_of_one_tenant_do_not_delay_others): A has three jobs of 100 KB, then B three of
    1 KB: A, B, B, B, A, A

`prompt_learner` reads the queue on its thread and the event loop writes, both under one lock, held for microseconds.
"""

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

from functions.api.ids import TenantId

MAX_JOBS = 128
MAX_BYTES = 16 * 1024 * 1024  # four of the largest bodies
SHARE_RATIO = 0.25  # share of jobs and of bytes for one tenant


class TokenizeJob(Protocol):
    """The part of a job that the queue uses."""

    @property
    def tenant(self) -> TenantId: ...

    @property
    def body(self) -> bytes: ...

    @property
    def text_blocks(self) -> tuple[int, ...]:
        """Hashes of the text blocks, never empty. The last one identifies the whole prompt."""


Job = TypeVar("Job", bound=TokenizeJob)


class _Line(Generic[Job]):
    """Waiting jobs of one tenant in order of arrival."""

    __slots__ = ("jobs", "spent_bytes", "waiting_bytes")

    def __init__(self, spent_bytes: int) -> None:
        self.jobs: deque[Job] = deque()
        self.spent_bytes = spent_bytes
        self.waiting_bytes = 0


class TokenizeQueue(Generic[Job]):
    """Thread-safe queue of jobs."""

    def __init__(self) -> None:
        self._lines: dict[TenantId, _Line[Job]] = {}  # tenants with waiting jobs
        self._known: set[int] = set()  # last text block of each waiting job
        self._bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, job: Job) -> bool:
        """Add a job. Return False if there is no room or the queue is closed.

        A duplicate of a waiting job is not added, and the result is True.
        """
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

    def next_job(self) -> Job | None:
        """Wait for a job of the tenant that has used the least and return it, or None once the queue is closed."""
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
        """Close the queue: jobs that wait are not handed out any more, and `next_job` returns None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_capacity(self, line: _Line[Job], size_bytes: int) -> bool:
        """Return True if the job fits the queue and its tenant's share. A tenant's only job may exceed the share."""
        if len(self._known) >= MAX_JOBS or self._bytes + size_bytes > MAX_BYTES:
            return False
        own_bytes = line.waiting_bytes + size_bytes
        return not line.jobs or (len(line.jobs) < MAX_JOBS * SHARE_RATIO and own_bytes <= MAX_BYTES * SHARE_RATIO)

    def _least_spent_bytes(self) -> int:
        return min((line.spent_bytes for line in self._lines.values()), default=0)
