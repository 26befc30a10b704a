"""Content of adapters that git declares: where this region's store lacks it, it comes from a region that has it.

One repository names an adapter's digest for all regions, and whoever pushed it has put its content into one of them.
A name is no content: an `s3://` address without a digest is read in each region's own bucket, where it may be another.

    every 5 s     digests of published models that git declares, of which this store has no manifest
    each          fetched like the content of a version of the API, every byte verified, and checked against the base

What is in the way is held, and told, until some region has it.
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
from functions.registry.sql.errors import Refused

MAX_AT_ONCE = 100  # a round's; the rest follows
_ANYBODY = TenantId("")

Fetch = Callable[[Digest, Expectation], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Missing:
    """A version that git declares, and whose content is not here."""

    model: ModelEntry
    digest: Digest


@dataclass(slots=True)
class DeclaredContent:
    """One for all regions that are followed; owned by the event loop."""

    services: RegistryServices
    _there: set[Digest] = field(default_factory=set)

    async def missing(self) -> dict[str, Missing]:
        """By model@version. A store that does not answer says nothing of what is missing."""
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
                is_there = await asyncio.to_thread(ingesting.has, each.digest)
            except ArtifactError:  # the watch of the store tells it
                break
            if is_there:
                self._there.add(each.digest)
            else:
                lacking[subject] = each
            if len(lacking) >= MAX_AT_ONCE:
                break
        return lacking

    async def bring(self, missing: dict[str, Missing], fetch: Fetch) -> dict[str, Exception | None]:
        """Each by `fetch`, from one region; what was in the way of it."""
        outcome: dict[str, Exception | None] = {}
        for subject, each in itertools.islice(missing.items(), MAX_AT_ONCE):
            try:
                await self._bring(each, fetch)
                outcome[subject] = None
            except (Refused, ApiError, ArtifactError) as error:
                outcome[subject] = error
        return outcome

    async def _bring(self, missing: Missing, fetch: Fetch) -> None:
        services, ingesting = self.services, self.services.ingesting
        tenant = services.declared.require_tenant(missing.model.id.partition("/")[0])
        async with services.checks.of(_ANYBODY, missing.digest, "regions"):  # another region may be asked as well
            if ingesting is not None and not await asyncio.to_thread(ingesting.has, missing.digest):
                await fetch(missing.digest, await services.expectation(tenant, str(missing.model.pool)))
