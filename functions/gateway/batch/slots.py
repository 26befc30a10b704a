"""How much a gateway's batches have at a time: lines in flight, bytes of lines that are held, listings that are read.

Of each, one tenant has at most a part. Each is owned by one event loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.tenant_limits import TenantShares


class LineSlots(TenantShares):
    """Lines in flight."""

    def __init__(self, most: int, most_per_tenant: int) -> None:
        super().__init__()
        self.most = most
        self._most_per_tenant = most_per_tenant

    def is_free(self, tenant: str, own_most: int) -> bool:
        """`own_most`: what the tenant's own limits leave to batches."""
        return self.held < self.most and self.held_by(tenant) < min(self._most_per_tenant, own_most)


class HeldBytes(TenantShares):
    """What batches hold in memory of one kind: lines that have no answer yet, or the answers in flight."""

    def __init__(self, most: int, most_per_tenant: int) -> None:
        super().__init__()
        self._most = most
        self._most_per_tenant = most_per_tenant

    def is_free(self, tenant: str, size_bytes: int) -> bool:
        is_own = self.held_by(tenant) + size_bytes <= self._most_per_tenant
        return is_own and self.held + size_bytes <= self._most


class ListingSlots(TenantShares):
    """Listings of one tenant's files or batches: each may read a thousand records."""

    def __init__(self, most_per_tenant: int) -> None:
        super().__init__()
        self._most_per_tenant = most_per_tenant

    @contextmanager
    def taken(self, tenant: str, amount: int = 1) -> Iterator[None]:
        """Raises Refused (429)."""
        if self.held_by(tenant) >= self._most_per_tenant:
            message = f"{self._most_per_tenant} listings of yours are under way. Wait for one to end."
            raise Refused(ErrorAnswer(429, "requests", "too_many_listings", message, retry_after_s=1))
        with super().taken(tenant, amount):
            yield
