"""How many lines may be in flight, and how many bytes of lines be held: of a gateway's batches, and of one tenant's."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class LinePlaces:
    """Owned by one event loop."""

    most: int
    most_per_tenant: int
    _held: Counter[str] = field(default_factory=Counter)

    @property
    def held(self) -> int:
        return self._held.total()

    def is_free(self, tenant: str, own_most: int) -> bool:
        """`own_most`: what the tenant's own limits leave to batches."""
        return self.held < self.most and self._held[tenant] < min(self.most_per_tenant, own_most)

    @contextmanager
    def taken(self, tenant: str) -> Iterator[None]:
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]


@dataclass(slots=True)
class HeldBytes:
    """What batches hold in memory of one kind: lines that have no answer yet, or the answers in flight."""

    most: int
    most_per_tenant: int
    _held: Counter[str] = field(default_factory=Counter)

    @property
    def held(self) -> int:
        return self._held.total()

    def is_free(self, tenant: str, size_bytes: int) -> bool:
        return self.held + size_bytes <= self.most and self._held[tenant] + size_bytes <= self.most_per_tenant

    @contextmanager
    def taken(self, tenant: str, size_bytes: int) -> Iterator[None]:
        self._held[tenant] += size_bytes
        try:
            yield
        finally:
            self._held[tenant] -= size_bytes
            if not self._held[tenant]:
                del self._held[tenant]
