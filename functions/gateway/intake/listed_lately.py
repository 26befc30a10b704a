"""`GET /v1/models` as it was a moment ago: whoever asks again within a second is told the same.

Writing the listing of ten thousand models takes the loop 12 ms, and nothing in it is so new that a second matters. A
new snapshot is told at once.

Neighbours: `listing` writes; what a tenant asks how often is bounded in `lookups`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from functions.api.ids import TenantId
from functions.decisions.catalogue import Catalogue
from functions.fleet.view import FleetView
from functions.gateway.intake.listing import Listing

KEPT_S = 1.0
KEPT_BYTES = 32 * 1024 * 1024  # of all tenants': eight of the largest


@dataclass(frozen=True, slots=True)
class _Listed:
    catalogue: Catalogue
    written_s: float
    content: bytes


class ListedLately:
    """Owned by one event loop."""

    def __init__(self, clock: Callable[[], float], kept_bytes: int = KEPT_BYTES) -> None:
        self._clock = clock
        self._kept_bytes = kept_bytes
        self._listing = Listing()
        self._lately: dict[TenantId, _Listed] = {}  # the oldest first
        self._held_bytes = 0

    def models(self, catalogue: Catalogue, fleet: FleetView, tenant: TenantId) -> bytes:
        """All that the tenant may call, as JSON."""
        now_s, lately = self._clock(), self._lately.get(tenant)
        if lately is not None and lately.catalogue is catalogue and now_s - lately.written_s < KEPT_S:
            return lately.content
        content = self._listing.models(catalogue, fleet, tenant)
        self._keep(tenant, _Listed(catalogue, now_s, content))
        return content

    def _keep(self, tenant: TenantId, listed: _Listed) -> None:
        self._drop(tenant)
        self._lately[tenant] = listed
        self._held_bytes += len(listed.content)
        while self._lately:
            oldest, its = next(iter(self._lately.items()))
            if self._held_bytes <= self._kept_bytes and listed.written_s - its.written_s < KEPT_S:
                return
            self._drop(oldest)

    def _drop(self, tenant: TenantId) -> None:
        dropped = self._lately.pop(tenant, None)
        self._held_bytes -= len(dropped.content) if dropped is not None else 0

    def __len__(self) -> int:
        return len(self._lately)
