"""Services that the catalogue's routes share, built once by the composition root."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakValueDictionary

from fastapi import Request

from functions.api.ids import Digest, TenantId
from functions.artifacts.ingest import Expectation
from functions.fleet.rollout_stats import EvidenceBook
from functions.registry.declared import DeclaredCatalogue
from functions.registry.ingesting import Ingesting
from functions.registry.principal import Authenticator, Principal
from functions.registry.sql.catalogue_writes import CatalogueLimits
from functions.registry.sql.database import Database
from functions.registry.sql.transaction import Write

# Running checks of content against a base, so that concurrent requests check the same content only once.


@dataclass(frozen=True, slots=True)
class Checks:
    """One lock per check, which exists while a request holds or awaits it. Owned by one event loop."""

    locks: WeakValueDictionary[tuple[TenantId, Digest, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def lock_for(self, tenant: TenantId, digest: Digest, fingerprint: str) -> asyncio.Lock:
        return self.locks.setdefault((tenant, digest, fingerprint), asyncio.Lock())


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class RegistryServices:
    database: Database
    declared: DeclaredCatalogue
    authenticator: Authenticator
    limits: CatalogueLimits
    evidence: EvidenceBook
    ingesting: Ingesting | None  # None means that no object store is configured, so no adapter can be stored
    pepper: bytes | None
    key_environment: str = "live"  # part of each key's text
    max_keys_per_tenant: int = 100
    checks: Checks = field(default_factory=Checks)

    async def expectation(self, tenant: TenantId | None, base: str) -> Expectation:
        """Return the requirements for an adapter of the tenant over this base. Needs an object store."""
        assert self.ingesting is not None
        return await self.ingesting.expectation(tenant, base, self.declared.folder_of(base))

    async def bases_without_facts(self) -> list[str]:
        """Return the base models without facts, whose adapters are therefore not checked. Empty without an object
        store."""
        if self.ingesting is None:
            return []
        return await asyncio.to_thread(self.ingesting.bases_without_facts, self.declared.base_folders())

    async def write(self, request: Request, principal: Principal, work: Callable[[Write], Answer]) -> Answer:
        """Run `work` in one audited transaction and return its result. It is short and atomic, so a client that
        disconnects does not cancel it."""
        actor = principal.actor(request)
        write = self.database.run(lambda: self.database.write(actor, work), for_operator=principal.is_operator)
        return await _run_to_end(write)


async def _run_to_end(work: Awaitable[Answer]) -> Answer:
    return await asyncio.shield(work)
