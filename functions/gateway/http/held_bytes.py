"""Memory limit for bodies and answers of all connections together, until they are written to a socket.

Each body and answer has its own limit (`Limits.body_bytes`, `answer_bytes`) and timeout. Still, 9,500 connections
with such a body each would need 37 GB, and 70 slow readers of 32 MB 2 GB. Large bodies and answers therefore share
`Limits.uploads_bytes`:

    the first 64 KiB of each         free and not counted, so that large transfers never cause small ones to be rejected
    a body beyond that               counted in steps of 64 KiB as it arrives, until an engine has it or it ends
    a larger announced length        rejected with its head if there is no room for the first step
    an answer beyond that            counted in steps of 64 KiB as it arrives: rejected, and charged, without room
    what a client has not read       counted until it is read, although it is already written
    share of one tenant              at most as much as it leaves free: held by it <= limit - held by all

An announced length reserves nothing. In a burst most bodies are complete before the last begin, and a client that
announces a body without sending it must not block others (test_announced_body_takes_no_room_before_it_arrives).

Worked example (test_tenant_holds_at_most_what_it_leaves_free): of 256 MiB the first tenant gets 128, a second
one then 64, a third 32. Together with the free part, 9,500 connections hold at most 256 MiB + 9,500 x 64 KiB = 850
MiB (`memory` has the whole sum).

If there is no room, clients that read more slowly than `Limits.slow_reader_bytes_per_s` are disconnected first, the
largest first. A slow reader also counts among its tenant's concurrent requests.

Clients that send more than the free bytes are authenticated: `Gateway.precheck` has checked a key. Files
(`/v1/files`) are streamed to the store, a few at a time, and are not counted here.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from functions.api.ids import TenantId
from functions.decisions.admission.drain_rate import retry_after_s
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, RequestRejected, unavailable
from functions.gateway.limits import Limits
from functions.gateway.tenant_limits import TenantShares
from functions.http.guard import Reader

FREE_BYTES = 64 * 1024  # below this, reading an unauthenticated body costs less than checking twice
_STEP_BYTES = 64 * 1024
_AFTER_S = 2.0  # time for a body of 4 MiB at 16 Mbit/s
_GRACE_S = 2.0  # time before a reader's rate is meaningful

_log = logging.getLogger(__name__)


class Hold:
    """Memory reserved for one body or answer in transit. It ends once, at the latest with its connection."""

    __slots__ = ("_held", "_refusal", "bound_bytes", "held_bytes", "tenant")

    def __init__(self, held: "HeldBytes", tenant: TenantId, refusal: Callable[[], ErrorAnswer]) -> None:
        self._held = held
        self._refusal = refusal
        self.tenant = tenant
        self.held_bytes = 0
        self.bound_bytes = FREE_BYTES  # size up to which no further reservation is needed

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def reserve_up_to(self, size_bytes: int) -> None:
        """Reserve memory for `size_bytes`, more than `bound_bytes`, rounded up to whole steps: the new `bound_bytes`.

        Raise RequestRejected if there is no room.
        """
        taken_bytes = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
        self._held.reserve(self.tenant, taken_bytes - self.held_bytes, self._refusal)
        self.held_bytes = self.bound_bytes = taken_bytes

    def end(self) -> None:
        """Release the reserved memory; does nothing if it was released before."""
        held_bytes, self.held_bytes = self.held_bytes, 0
        if held_bytes:
            self._held.release(self.tenant, held_bytes)


@dataclass(slots=True)
class _Unread:
    """Bytes that wait for one reader."""

    tenant: TenantId
    at_first_bytes: int
    held_bytes: int  # unread bytes at the last update
    since_s: float
    leave: Callable[[], None]  # releases its slot among the tenant's requests


class HeldBytes:
    """Memory held by large bodies and answers. Owned by one event loop."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        *,
        on_refused: Callable[[str], None],
        on_cut: Callable[[], None],
        occupy: Callable[[TenantId], Callable[[], None]],
    ) -> None:
        """Start empty. `on_refused` receives a metric label; `occupy` returns the release of a tenant's slot."""
        self._limit_bytes = limits.uploads_bytes
        self._least_bytes_per_s = limits.slow_reader_bytes_per_s
        self._clock = clock
        self._on_refused, self._on_cut, self._occupy = on_refused, on_cut, occupy
        self._shares = TenantShares()
        self._unread: dict[Reader, _Unread] = {}

    @property
    def held_bytes(self) -> int:
        return self._shares.held

    @property
    def unread_bytes(self) -> int:
        """Bytes of answers of all counted readers (`add_waiting`) that clients have not read."""
        return sum(unread.held_bytes for unread in self._unread.values())

    def body(self, tenant: TenantId, announced_bytes: int | None, request_id: str) -> Hold:
        """Return the hold, still empty, for a body that is about to be read.

        Raise RequestRejected if a body of over FREE_BYTES is announced and there is no room for a large body.
        """

        def refusal() -> ErrorAnswer:
            self._on_refused("uploads_full")
            return _no_room_for_body(request_id)

        if (announced_bytes or 0) > FREE_BYTES:
            self._check(tenant, FREE_BYTES + _STEP_BYTES, refusal)
        return Hold(self, tenant, refusal)

    def copy(self, tenant: TenantId) -> Hold:
        """Return the hold, still empty, for a copy of a body. Without room the request continues without the copy."""
        return Hold(self, tenant, lambda: _no_room_for_body(""))

    def answer(self, tenant: TenantId, request_id: str) -> Hold:
        """Return the hold, still empty, for an answer that is about to be collected."""

        def refusal() -> ErrorAnswer:
            self._on_refused("answers_full")
            return errors.no_room_for_answer(retry_after_s(_AFTER_S, request_id))

        return Hold(self, tenant, refusal)

    def reserve(self, tenant: TenantId, size_bytes: int, refusal: Callable[[], ErrorAnswer]) -> None:
        self._check(tenant, size_bytes, refusal)
        self._shares.reserve(tenant, size_bytes)

    def release(self, tenant: TenantId, size_bytes: int) -> None:
        self._shares.release(tenant, size_bytes)

    # readers

    def add_waiting(self, reader: Reader, tenant: TenantId) -> None:
        """Count the reader's unread bytes and a slot of its tenant until `remove_waiting`.

        A reader that is counted already and small amounts are ignored.
        """
        size_bytes = reader.unread_bytes
        if size_bytes <= FREE_BYTES or reader in self._unread:
            return
        self._shares.reserve(tenant, size_bytes)
        self._unread[reader] = _Unread(tenant, size_bytes, size_bytes, self._clock(), self._occupy(tenant))

    def remove_waiting(self, reader: Reader) -> None:
        """Release the reader's bytes and slot because it has read all or left. Does nothing for an unknown reader."""
        unread = self._unread.pop(reader, None)
        if unread is not None:
            self._shares.release(unread.tenant, unread.held_bytes)
            unread.leave()

    # internals

    def _check(self, tenant: TenantId, size_bytes: int, refusal: Callable[[], ErrorAnswer]) -> None:
        if not self._has_room(tenant, size_bytes):
            self._update_readers()
            for reader in self._slow():
                if self._has_room(tenant, size_bytes):
                    return
                self._cut(reader)
        if not self._has_room(tenant, size_bytes):
            raise RequestRejected(refusal())

    def _has_room(self, tenant: TenantId, size_bytes: int) -> bool:
        return self._shares.held_by(tenant) + size_bytes <= self._limit_bytes - self.held_bytes - size_bytes

    def _update_readers(self) -> None:
        for reader, unread in self._unread.items():
            read_bytes = unread.held_bytes - reader.unread_bytes
            if read_bytes > 0:
                unread.held_bytes -= read_bytes
                self._shares.release(unread.tenant, read_bytes)

    def _slow(self) -> list[Reader]:
        """Return the readers below the lowest allowed rate after _GRACE_S, those with the most held bytes first."""
        now_s = self._clock()
        found = []
        for reader, unread in self._unread.items():
            waited_s = now_s - unread.since_s
            read_bytes = unread.at_first_bytes - unread.held_bytes
            if waited_s >= _GRACE_S and read_bytes < waited_s * self._least_bytes_per_s:
                found.append((unread.held_bytes, reader))
        return [reader for _, reader in sorted(found, key=lambda each: -each[0])]

    def _cut(self, reader: Reader) -> None:
        unread = self._unread[reader]
        waited_s = self._clock() - unread.since_s
        _log.warning(
            "slow client of %s disconnected: it read %d of %d bytes in %.0f s, and other requests need the memory",
            unread.tenant, unread.at_first_bytes - unread.held_bytes, unread.at_first_bytes, waited_s,
        )  # fmt: skip
        self.remove_waiting(reader)
        self._on_cut()
        reader.give_way()


def _no_room_for_body(request_id: str) -> ErrorAnswer:
    after_s = retry_after_s(_AFTER_S, request_id)
    message = (
        f"The gateway's buffer for large bodies and answers is full. Send the request again in {after_s} s; "
        f"bodies of up to {FREE_BYTES // 1024} KiB are accepted now."
    )
    return unavailable(message, "overloaded", after_s)
