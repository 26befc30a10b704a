"""Checks of content against a base that are under way, so that the same one is made once, however many ask for it."""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from functions.api.ids import Digest, TenantId


@dataclass(frozen=True, slots=True)
class Checks:
    """A lock for each, kept for as long as somebody has or awaits it. Owned by one event loop."""

    locks: WeakValueDictionary[tuple[TenantId, Digest, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def of(self, tenant: TenantId, digest: Digest, fingerprint: str) -> asyncio.Lock:
        return self.locks.setdefault((tenant, digest, fingerprint), asyncio.Lock())
