"""Fetch content of adapters that git declares from another region, if this region's store lacks it.

All regions read one repository, which names an adapter's digest; its content may have been pushed to only one region.
Only digests identify content: an `s3://` address without a digest is read from each region's own bucket, where it may
have other content.

    every 5 s     find digests of published models that git declares and that have no manifest in this store
    each          is fetched like content of an API version, every byte verified, and checked against the base

Failures are held and shown to the operator until some region has the content.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from functions.api.ids import Digest, TenantId
from functions.api.snapshot import ModelEntry
from functions.artifacts.errors import ArtifactError
from functions.artifacts.ingest import Expectation
from functions.registry.errors import ApiError
from functions.registry.services import RegistryServices
from functions.registry.sql.errors import CatalogueRefused

MAX_AT_ONCE = 100  # per round; the rest follows in the next one
_ANYBODY = TenantId("")

Fetch = Callable[[Digest, Expectation], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Missing:
    model: ModelEntry
    digest: Digest


@dataclass(slots=True)
class DeclaredContent:
    """Missing content of git's adapters, for all followed regions together. Owned by one event loop."""

    services: RegistryServices
    _there: set[Digest] = field(default_factory=set)

    async def find_missing(self) -> dict[str, Missing]:
        """Return versions of git's adapters whose content the store lacks, by model@version: at most MAX_AT_ONCE, none
        without a store, and only those found before the store fails."""
        ingesting = self.services.ingesting
        if ingesting is None:
            return {}
        wanted = {
            f"{model.id}@{version.name}": Missing(model, Digest(version.digest))
            for model in self.services.declared.git_adapters()
            for version in model.versions
        }
        self._there &= {each.digest for each in wanted.values()}
        unknown = {subject: each for subject, each in wanted.items() if each.digest not in self._there}
        lacking: dict[str, Missing] = {}
        for subject, each in unknown.items():
            try:
                is_there = await asyncio.to_thread(ingesting.has_manifest, each.digest)
            except ArtifactError:  # the store watch reports this
                break
            if is_there:
                self._there.add(each.digest)
            else:
                lacking[subject] = each
            if len(lacking) >= MAX_AT_ONCE:
                break
        return lacking

    async def fetch_missing(self, missing: dict[str, Missing], fetch: Fetch) -> dict[str, Exception | None]:
        """Fetch at most MAX_AT_ONCE of the versions from one region with `fetch`. Return the error of each of them, or
        None if it was fetched."""
        outcome: dict[str, Exception | None] = {}
        for subject, each in itertools.islice(missing.items(), MAX_AT_ONCE):
            try:
                await self._fetch_one(each, fetch)
                outcome[subject] = None
            except (CatalogueRefused, ApiError, ArtifactError) as error:
                outcome[subject] = error
        return outcome

    async def _fetch_one(self, missing: Missing, fetch: Fetch) -> None:
        services, ingesting = self.services, self.services.ingesting
        tenant = services.declared.require_tenant(missing.model.id.partition("/")[0])
        # the tasks of several regions may fetch the same content
        async with services.checks.lock_for(_ANYBODY, missing.digest, "regions"):
            if ingesting is not None and not await asyncio.to_thread(ingesting.has_manifest, missing.digest):
                await fetch(missing.digest, await services.expectation(tenant, str(missing.model.pool)))
