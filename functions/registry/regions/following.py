"""Follow the other regions: merge their registries' facts with ours, and charge their use to our limits.

    a page of changes      keys immediately: a revoked key must not wait for gigabytes of content
                           models into a queue, the newest facts of each; two at a time are adopted
    a model                merge (pure) → copy content of new versions to our store → one transaction per fact
    git's adapters         content that another region has and this one lacks (`declared_content`)
    conflicts              held, shown to the operator and retried every 5 s: git or the store may catch up
    each second            amounts that their buses granted are charged to ours (`functions.fleet.quota_regions`)

No position survives a restart: a registry reads all facts at its start, and finds most of them known. The list of
regions is a file that may change. A region that leaves the list is no longer followed; facts adopted from it stay.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from functions.api.ids import Digest, ModelId, TenantId
from functions.artifacts.errors import ArtifactError
from functions.artifacts.ingest import Expectation
from functions.decisions.regions.facts import KeyFact, ModelFacts
from functions.decisions.regions.merge import Held, merge, merge_key
from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_regions import SILENT_S, RegionBus
from functions.fleet.regions import RegionAddress, read_regions
from functions.fleet.tasks import Supervised
from functions.registry.errors import ApiError
from functions.registry.ingesting import Ingesting
from functions.registry.metrics import RegionStatus
from functions.registry.regions import taking
from functions.registry.regions.client import WAIT_S, RegionAccess, RegionAway, RegionClient, RegionContent
from functions.registry.regions.declared_content import DeclaredContent
from functions.registry.services import RegistryServices
from functions.registry.sql import artifacts, region_facts
from functions.registry.sql.audit import Actor
from functions.registry.sql.errors import CatalogueRefused, DatabaseUnavailable
from functions.registry.sql.transaction import Write
from functions.registry.version_content import no_store

LOOK_S = 5.0  # interval of reading the list of regions
RETRY_S = 5.0
LIMITS_S = 1.0
AT_ONCE = 2  # models at a time; a new version may be a gigabyte
MAX_TOLD = 100  # models or keys with held facts in an answer

_log = logging.getLogger(__name__)
_ANYBODY = TenantId("")
_IN_THE_WAY = (CatalogueRefused, ApiError, ArtifactError)


@dataclass(slots=True)
class OtherRegion:
    """Another region, with its last known position and its held facts."""

    name: str
    url: str
    lineage: str = ""
    change: int = 0
    heard_s: float | None = None  # monotonic
    waiting: dict[str, ModelFacts] = field(default_factory=dict)
    updated: asyncio.Event = field(default_factory=asyncio.Event)
    held: dict[str, tuple[Held, ...]] = field(default_factory=dict)  # by model or key
    tried_again: dict[str, ModelFacts] = field(default_factory=dict)
    keys_again: dict[str, KeyFact] = field(default_factory=dict)
    taken: int = 0  # facts
    used_began: str = ""
    used_upto: str = "0"
    tasks: Supervised = field(default_factory=Supervised)

    @property
    def actor(self) -> Actor:
        return Actor(f"region:{self.name}")


class RegionsFollower:
    """Tasks that follow all other regions. Owned by one event loop."""

    def __init__(
        self,
        region: str,
        file: Path,
        access: RegionAccess,
        services: RegistryServices,
        bus: RegionBus,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.region = region
        self.others: dict[str, OtherRegion] = {}
        self._file = file
        self._access = access
        self._client = RegionClient(access)
        self._services = services
        self._bus = bus
        self._clock = clock
        self._declared = DeclaredContent(services)

    async def run(self) -> None:
        """Re-read the file of regions every LOOK_S and follow those in it, until cancelled. Raises RegionsUnreadable if
        it cannot be read."""
        while True:
            await self._apply_list(await asyncio.to_thread(read_regions, self._file))
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        for other in self.others.values():
            await other.tasks.close()
        await self._client.close()

    def is_connected(self, other: OtherRegion) -> bool:
        return other.heard_s is not None and self._clock() - other.heard_s < SILENT_S

    def statuses(self) -> list[RegionStatus]:
        return [
            RegionStatus(other.name, self.is_connected(other), len(other.held), other.taken)
            for other in self.others.values()
        ]

    def described(self) -> list[dict[str, Any]]:
        return [
            {
                "region": other.name,
                "registry_url": other.url,
                "connected": self.is_connected(other),
                "heard_s_ago": None if other.heard_s is None else round(self._clock() - other.heard_s, 1),
                "change": other.change,
                "waiting": len(other.waiting),
                "taken": other.taken,
                "held": [
                    {"subject": each.subject, "code": each.code, "message": each.message}
                    for some in list(other.held.values())[:MAX_TOLD]
                    for each in some
                ],
            }
            for other in sorted(self.others.values(), key=lambda other: other.name)
        ]

    async def _apply_list(self, listed: dict[str, RegionAddress]) -> None:
        wanted = {name: address.registry_url for name, address in listed.items() if name != self.region}
        for name, other in list(self.others.items()):
            if wanted.get(name) != other.url:
                await other.tasks.close()
                del self.others[name]
        for name, url in wanted.items():
            if name not in self.others:
                other = self.others[name] = OtherRegion(name, url)
                self._start_tasks(other)

    def _start_tasks(self, other: OtherRegion) -> None:
        away = (RegionAway, DatabaseUnavailable, BusUnavailable)
        parts: dict[str, Callable[[OtherRegion], Awaitable[None]]] = {
            "changes": self._follow, "models": self._apply_waiting, "retries": self._try_again, "limits": self._charge,
            "declared content": self._fetch_declared,
        }  # fmt: skip
        for what, run in parts.items():
            other.tasks.forever(f"region {other.name}: {what}", functools.partial(run, other), expected=away)

    # -- receiving facts ---------------------------------------------------------------------------------------------

    async def _follow(self, other: OtherRegion) -> None:
        wait_s = 0.0  # the first request returns immediately, which shows that the region answers
        while True:
            page = await self._client.fetch_changes(other.url, other.change, wait_s)
            other.heard_s = self._clock()
            if (other.lineage and page.lineage != other.lineage) or page.change < other.change:
                _log.warning("region %s has another database than before: all its facts are read again", other.name)
                other.lineage, other.change, wait_s = page.lineage, 0, 0.0
                continue
            for key in page.keys:
                await self._apply_key(other, key)
            other.waiting |= {model.id: model for model in page.models}
            other.updated.set()
            other.lineage, other.change = page.lineage, page.change
            wait_s = 0.0 if page.more else WAIT_S

    async def _apply_waiting(self, other: OtherRegion) -> None:
        while True:
            await other.updated.wait()
            other.updated.clear()
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(AT_ONCE):
                        group.create_task(self._apply_models(other))
            except ExceptionGroup as several:
                raise several.exceptions[0] from None

    async def _apply_models(self, other: OtherRegion) -> None:
        while other.waiting:
            model = other.waiting.pop(next(iter(other.waiting)))
            try:
                held = await self._apply_model(other, model)
            except BaseException:
                other.waiting.setdefault(model.id, model)
                other.updated.set()
                raise
            self._record_held(other, model.id, held)
            if held:
                other.tried_again[model.id] = model

    async def _try_again(self, other: OtherRegion) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            again, other.tried_again = other.tried_again, {}
            other.waiting = again | other.waiting  # facts received since then are newer
            keys, other.keys_again = other.keys_again, {}
            for key in keys.values():
                await self._apply_key(other, key)
            if again:
                other.updated.set()

    def _record_held(self, other: OtherRegion, subject: str, held: tuple[Held, ...]) -> None:
        if held and held != other.held.get(subject):
            for each in held:
                _log.warning("region %s: %s is held (%s): %s", other.name, each.subject, each.code, each.message)
        if held:
            other.held[subject] = held
        else:
            other.held.pop(subject, None)

    # -- adopting facts ----------------------------------------------------------------------------------------------

    async def _apply_key(self, other: OtherRegion, fact: KeyFact) -> None:
        services = self._services
        try:
            ours = (await self._read(lambda c: region_facts.keys_of(c, (fact.id,)))).get(fact.id)
            decided = merge_key(ours, fact)
            if isinstance(decided, KeyFact):
                if ours is None:
                    services.declared.require_tenant(fact.tenant)
                write = lambda write: taking.apply_key(write, fact, services.max_keys_per_tenant)  # noqa: E731
                await self._write(other, write)
            self._record_held(other, fact.id, (decided,) if isinstance(decided, Held) else ())
        except _IN_THE_WAY as error:
            self._record_held(other, fact.id, (_held(fact.id, error),))
            other.keys_again[fact.id] = fact

    async def _apply_model(self, other: OtherRegion, theirs: ModelFacts) -> tuple[Held, ...]:
        """Adopt another region's facts of a model, unless git declares it. Return the conflicts that keep some of them
        from being adopted."""
        services, limits = self._services, self._services.limits
        if services.declared.git_model(ModelId(theirs.id)) is not None:
            return ()  # declared in git, which all regions read
        ours = (await self._read(lambda c: region_facts.models_of(c, (theirs.id,)))).get(theirs.id)
        taken = merge(ours, theirs)
        held = list(taken.held)

        async def step(subject: str, work: Callable[[Write], None], before: Awaitable[None] | None = None) -> None:
            try:
                if before is not None:
                    await before
                await self._write(other, work)
            except _IN_THE_WAY as error:
                held.append(_held(subject, error))

        model, partial = theirs.id, functools.partial
        for version in taken.versions:
            content = self._fetch_content(other, theirs, Digest(version.digest))
            work = partial(taking.apply_version, model=theirs, fact=version, limits=limits)
            await step(f"{model}@{version.name}", work, content)
        if taken.policy:
            await step(f"{model} {theirs.rollout}", partial(taking.apply_policy, model=theirs))
        for channel in taken.channels:
            policy_of = services.declared.policy
            moved = partial(taking.apply_channel, model=theirs, fact=channel, policy_of=policy_of, limits=limits)
            await step(f"{model}:{channel.name}", moved)
        for version in taken.gone:
            await step(f"{model}@{version.name}", partial(taking.apply_version_deletion, model=theirs, fact=version))
        for version in taken.kept:
            await step(f"{model}@{version.name}", partial(taking.restore_version, model=theirs, fact=version))
        if taken.model_ends:
            await step(model, partial(taking.apply_model_deletion, model=theirs))
        return tuple(held)

    async def _fetch_content(self, other: OtherRegion, model: ModelFacts, digest: Digest) -> None:
        """Copy the content of a version from the other region to this region's store, for the model's tenant, unless
        the tenant has it."""
        services, ingesting = self._services, self._services.ingesting
        tenant = services.declared.require_tenant(model.tenant)
        services.declared.require_base(model.base, tenant)
        # one copy of a digest at a time, whatever the tenant
        async with services.checks.lock_for(_ANYBODY, digest, "regions"):
            if await self._read(lambda c: artifacts.find(c, digest, tenant)) is not None:
                return
            if ingesting is None:
                raise no_store()
            expect = await services.expectation(tenant, model.base)
            await self._fetch(ingesting, other, digest, expect)
        _log.info("region %s: content %s of %s was copied", other.name, digest, model.id)

    async def _fetch_declared(self, other: OtherRegion) -> None:
        async def fetch(digest: Digest, expect: Expectation) -> None:
            ingesting = self._services.ingesting
            if ingesting is None:
                raise no_store()
            await self._fetch(ingesting, other, digest, expect)
            _log.info("region %s: content %s, which git declares, was copied", other.name, digest)

        told: set[str] = set()
        while True:
            missing = await self._declared.find_missing()
            for subject in told - missing.keys():
                self._record_held(other, subject, ())
            for subject, error in (await self._declared.fetch_missing(missing, fetch)).items():
                self._record_held(other, subject, () if error is None else (_held(subject, error),))
            told = set(missing)
            await asyncio.sleep(RETRY_S)

    async def _fetch(self, ingesting: Ingesting, other: OtherRegion, digest: Digest, expect: Expectation) -> None:
        async with ingesting.wait_for_place(None):
            with contextlib.closing(RegionContent(self._access, other.url)) as source:

                def ingest_content() -> None:
                    ingested = ingesting.ingest.from_source(source, digest, expect)
                    ingesting.record_artifact(ingested, "", expect, other.actor)

                await ingesting.run(ingest_content)

    async def _read(self, work: Callable[[Any], Any]) -> Any:
        database = self._services.database
        return await database.run(lambda: database.read(work), for_operator=True)

    async def _write(self, other: OtherRegion, work: Callable[[Write], None]) -> None:
        database = self._services.database
        await database.run(lambda: database.write(other.actor, work), for_operator=True)
        other.taken += 1

    # -- limits -------------------------------------------------------------------------------------------------------

    async def _charge(self, other: OtherRegion) -> None:
        while True:
            await self._charge_once(other)
            await asyncio.sleep(LIMITS_S)

    async def _charge_once(self, other: OtherRegion) -> None:
        """Charge here all amounts that the other region has granted since the last time; from the beginning if the
        position is lost."""
        is_whole, more = other.used_upto == "0", True
        while more:
            used = await self._client.fetch_used(other.url, other.used_upto)
            other.heard_s = self._clock()
            if used.began != other.used_began and not is_whole:
                charged = None
            else:
                charged = await self._bus.charge(other.name, used, is_whole=is_whole)
            if charged is None:
                other.used_upto, is_whole = "0", True
                continue
            other.used_began, other.used_upto, more = used.began, used.upto, used.more


def _held(subject: str, error: Exception) -> Held:
    code = error.code if isinstance(error, CatalogueRefused | ApiError) else type(error).__name__
    return Held(subject, str(code), error.message if isinstance(error, ApiError) else str(error))
