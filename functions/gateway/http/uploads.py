"""Memory bound on request bodies that are arriving, all connections of the process together.

Each body has a bound of its own (`Limits.body_bytes`) and a time (`Limits.body_s`); 9,500 connections with such a body
each would still be 37 GB. So large bodies share `Limits.uploads_bytes`:

    the first 64 KiB of each body    free: nothing is counted, and small bodies are never refused for large ones
    beyond                           as it comes, 64 KiB at a time
    a larger length was announced    refused with its head where there is no room for the first of these steps
    a tenant has at most             as much as it leaves free: held by it <= limit - held by all

An announced length takes nothing: of a burst most bodies are whole before the last begin, and whoever announces and
sends nothing must keep nobody out (test_what_is_announced_takes_no_room_before_it_comes).

Worked example (test_a_tenant_has_at_most_as_much_as_it_leaves_free): of 256 MiB one tenant gets 128, a second one that
comes then 64, a third 32: whoever comes first leaves room for the next. Together with what is free, 9,500 connections
hold 256 MiB + 9,500 x 64 KiB = 850 MiB at most.

Who sends more than the free bytes is known: `Gateway.precheck` has seen a key. Files (`/v1/files`) go on to the store
as they come, a few at a time, and are not among these.
"""

from collections.abc import Callable
from types import TracebackType

from functions.api.ids import TenantId
from functions.decisions.admission.drain_rate import retry_after_s
from functions.gateway.errors import Refused, unavailable
from functions.gateway.tenant_limits import TenantShares

FREE_BYTES = 64 * 1024  # up to here, reading a stranger's body costs less than looking twice
_STEP_BYTES = 64 * 1024
_AFTER_S = 2.0  # a body of 4 MiB on a line of 16 Mbit/s


class Upload:
    """One body on its way. Ends once, at the latest with its connection."""

    __slots__ = ("_request_id", "_uploads", "bound_bytes", "held_bytes", "tenant")

    def __init__(self, uploads: "Uploads", tenant: TenantId, request_id: str) -> None:
        self._uploads = uploads
        self.tenant = tenant
        self._request_id = request_id
        self.held_bytes = 0
        self.bound_bytes = FREE_BYTES  # up to here it may come without a call

    def __enter__(self) -> "Upload":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def came(self, size_bytes: int) -> None:
        """So much of it is here, which is more than `bound_bytes`; raises Refused (503) where there is no room."""
        taken_bytes = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
        self._uploads.take(self.tenant, taken_bytes - self.held_bytes, self._request_id)
        self.held_bytes = self.bound_bytes = taken_bytes

    def end(self) -> None:
        """It is whole, or will never be."""
        held_bytes, self.held_bytes = self.held_bytes, 0
        if held_bytes:
            self._uploads.give_back(self.tenant, held_bytes)


class Uploads:
    """Owned by one event loop."""

    def __init__(self, limit_bytes: int, on_refused: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_refused = on_refused
        self._shares = TenantShares()

    @property
    def held_bytes(self) -> int:
        return self._shares.held

    def begin(self, tenant: TenantId, announced_bytes: int | None, request_id: str) -> Upload:
        """Before a body is read; raises Refused (503)."""
        if (announced_bytes or 0) > FREE_BYTES:
            self._check(tenant, FREE_BYTES + _STEP_BYTES, request_id)
        return Upload(self, tenant, request_id)

    def take(self, tenant: TenantId, size_bytes: int, request_id: str) -> None:
        self._check(tenant, size_bytes, request_id)
        self._shares.take(tenant, size_bytes)

    def give_back(self, tenant: TenantId, size_bytes: int) -> None:
        self._shares.give_back(tenant, size_bytes)

    def _check(self, tenant: TenantId, size_bytes: int, request_id: str) -> None:
        if self._shares.held_by(tenant) + size_bytes > self._limit_bytes - self.held_bytes - size_bytes:
            self._on_refused()
            raise _no_room(request_id)


def _no_room(request_id: str) -> Refused:
    after_s = retry_after_s(_AFTER_S, request_id)
    message = (
        f"The gateway receives as much in large bodies as it has room for. Send it again in {after_s} s; "
        f"bodies of up to {FREE_BYTES // 1024} KiB are taken now."
    )
    return Refused(unavailable(message, "overloaded", after_s))
