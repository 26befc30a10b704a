"""How many listings of one tenant's files or batches go on at a time: each may read a thousand records."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from functions.gateway.errors import ErrorAnswer, Refused


@dataclass(slots=True)
class ListingPlaces:
    """Owned by one event loop."""

    most_per_tenant: int
    _held: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def taken(self, tenant: str) -> Iterator[None]:
        """Raises Refused (429)."""
        if self._held[tenant] >= self.most_per_tenant:
            message = f"{self.most_per_tenant} listings of yours are under way. Wait for one to end."
            raise Refused(ErrorAnswer(429, "requests", "too_many_listings", message, retry_after_s=1))
        self._held[tenant] += 1
        try:
            yield
        finally:
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
