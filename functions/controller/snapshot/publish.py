"""Publish a checked configuration as the registry's snapshot if its content differs.

This is the only entry point for a controller process; call it at the start, for each new revision, and periodically:

    registry = RegistryClient(http_client, registry_url, token)
    publisher = Publisher(registry=registry, resolver=Resolver(DigestReader(s3_store, models_root)))
    outcome = await publisher.publish(loaded, "main@0123…")
    outcome.message       # for people: "published epoch 7: 2 tenants, 4 models, 1 pools"
    outcome.problems      # versions left out, each with file and line
    outcome.left_out      # entries of the registry's API that are not served, and why
    outcome.refused       # models that git would take over from the API with other content
    outcome.held          # channels that stay until their new version is loaded; try again immediately
    outcome.rollouts      # rollouts that are active or halted
    outcome.complete      # False: something is missing or held; try again soon

A missing artifact or an unavailable registry raises nothing. Level-triggered: each call compares the desired content
with the registry's, so a registry that lost its state gets everything again, above every epoch ever seen. Rules: an
empty configuration is published only if that is intended (a wrong path must not lock out all tenants); the epoch
grows only if the content's hash differs; no channel moves to an unloaded version (`holding`) or past its rollout's
stage (`rollouts`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from functions.api.declared import Declared
from functions.api.ids import Digest, ModelId, RolloutId
from functions.api.kinds.catalogue import AnyObject
from functions.api.loader import Loaded
from functions.api.snapshot import Snapshot
from functions.api.snapshot_index import Indexed, indexed
from functions.controller.rollouts.following import RowsFollower
from functions.controller.rollouts.merging import without_revoked
from functions.controller.rollouts.placing import PlacedSnapshot, RowsUnknown, place_snapshot
from functions.controller.snapshot.compile import Compiled, compile_snapshot, unpinned_artifacts
from functions.controller.snapshot.holding import has_flips, hold_flips, serving_of
from functions.controller.snapshot.registry_client import (
    EpochConflict,
    RegistryClient,
    RegistryRefused,
    RegistryState,
    RegistryUnavailable,
)
from functions.controller.snapshot.resolve import Resolved, Resolver
from functions.decisions.health.backoff import BackoffPolicy, delay_s
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.replica_shares import with_shares
from functions.decisions.rollout.steering import follow_rollouts

ATTEMPTS = 4
BACKOFF = BackoffPolicy(base_s=0.2, cap_s=2.0)


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    kind: Literal["published", "unchanged", "invalid", "unavailable", "refused"]
    message: str
    epoch: int = 0  # last known epoch of the registry
    snapshot_hash: str = ""
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # API-declared entries; git's entries do not wait for them
    refused: tuple[str, ...] = ()  # messages about declared models that would change a version that the API serves
    held: tuple[str, ...] = ()
    rollouts: tuple[Rollout, ...] = ()  # active or halted
    complete: bool = False
    revision: str = ""
    snapshot: Snapshot | None = field(default=None, repr=False, compare=False)  # present content of the registry

    @property
    def all_problems(self) -> tuple[str, ...]:
        return (*self.problems, *self.refused, *self.left_out)


StagedOf = Callable[[Iterable[Declared[AnyObject]]], Collection[ModelId]]


def no_bases(_: Iterable[Declared[AnyObject]]) -> Collection[ModelId]:
    return ()


class Publisher:
    """Publisher of snapshots. Owned by one event loop. Calls wait for each other, but `follow_rows` waits for no
    artifact store. Without `rows`, only git's entries are published and there are no rollouts."""

    def __init__(
        self,
        *,
        registry: RegistryClient,
        resolver: Resolver,
        rows: RowsFollower | None = None,
        shares: Callable[[], Mapping[RolloutId, int]] | None = None,
        staged: StagedOf | None = None,
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`shares` returns the percents that the replicas of bases' rollouts bear; without it no base is rolled out
        in stages. `staged` returns the bases that are, among those declared; without it, all are."""
        self._registry = registry
        self._resolver = resolver
        self._rows = rows
        self._staged = staged if shares is not None else no_bases
        self._shares = shares or dict
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._turn = asyncio.Lock()  # held while declared objects are published
        self._lock = asyncio.Lock()  # held during any publication
        self._past: Indexed | None = None  # last known content of the registry
        self._past_hash = ""
        self._knows_the_past = False

    @property
    def published_snapshot(self) -> Snapshot | None:
        """Last known snapshot of the registry, or None if it has none or was not read yet."""
        return self._past.snapshot if self._past is not None else None

    async def publish(self, loaded: Loaded, revision: str, *, empty_is_meant: bool = False) -> PublishOutcome:
        """Compile and publish the changes, and return the outcome with the registry's snapshot. A revision without any
        object is invalid unless `empty_is_meant`. Raises no temporary error."""
        async with self._turn:
            if not loaded.objects and not empty_is_meant:
                message = f"{revision} declares no object at all; nothing was published"
                return PublishOutcome("invalid", message, revision=revision)
            outcome = await self._publish_retrying(loaded, revision)
            return replace(outcome, revision=revision, snapshot=self.published_snapshot)

    async def follow_rows(self) -> PublishOutcome:
        """Publish the present snapshot again with channels moved by their rollouts and without revoked keys. This works
        when nothing else may or can be published. Raises no temporary error."""
        return await self._retrying(self._follow_rows)

    async def _publish_retrying(self, loaded: Loaded, revision: str) -> PublishOutcome:
        return await self._retrying(lambda: self._publish(loaded, revision))

    async def _retrying(self, publish: Callable[[], Awaitable[PublishOutcome]]) -> PublishOutcome:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await publish()
            except RegistryRefused as error:
                return PublishOutcome("refused", str(error))
            except RowsUnknown as error:
                return PublishOutcome("unavailable", f"nothing is published without the registry's rows: {error}")
            except (RegistryUnavailable, EpochConflict) as error:
                last = str(error)
            if attempt < ATTEMPTS:
                await self._sleep(delay_s(attempt, BACKOFF))
        return PublishOutcome("unavailable", f"the registry accepted nothing in {ATTEMPTS} attempts: {last}")

    async def _publish(self, loaded: Loaded, revision: str) -> PublishOutcome:
        async with self._lock:
            await self._refresh_past(await self._registry.state())
        resolved = await self._resolver.resolve(unpinned_artifacts(loaded.objects))
        async with self._lock:
            return await self._publish_resolved(loaded, revision, resolved)

    async def _publish_resolved(self, loaded: Loaded, revision: str, resolved: Resolved) -> PublishOutcome:
        state = await self._registry.state()
        await self._refresh_past(state)
        compiled = await asyncio.to_thread(
            compile_snapshot,
            loaded.objects,
            resolved.digests,
            epoch=state.next_epoch,
            revision=revision,
            compiled_unix_s=self._wall_clock(),
        )
        placed = await self._place(compiled, loaded)
        problems = (*(str(problem) for problem in compiled.problems), *resolved.problems, *placed.problems)
        snapshot, flips_held = await self._held_back(with_shares(placed.snapshot, self._shares()))
        held = (*placed.held, *flips_held)
        content = await asyncio.to_thread(indexed, snapshot, self._past)
        snapshot_hash = content.content_hash
        outcome = PublishOutcome(
            "unchanged",
            f"unchanged: the registry holds this content as epoch {state.epoch}",
            state.epoch,
            snapshot_hash,
            problems=problems,
            left_out=placed.left_out,
            refused=placed.refused,
            held=held,
            rollouts=placed.rollouts,
            complete=not problems and not held and not placed.refused,
        )
        if _is_available_to_all(state, snapshot_hash):
            return outcome
        await self._registry.put(content, self._past if self._past_hash == state.snapshot_hash else None)
        self._past, self._past_hash = content, snapshot_hash
        message = f"published epoch {snapshot.epoch}: {_counts(snapshot, len(compiled.problems))}"
        return replace(outcome, kind="published", message=message, epoch=snapshot.epoch)

    async def _follow_rows(self) -> PublishOutcome:
        if self._rows is None:
            return PublishOutcome("unchanged", "there are no rows")
        await self._rows.ensure_current()
        if self._rows.trouble:
            return PublishOutcome("unavailable", f"the progress of rollouts is unknown: {self._rows.trouble}")
        async with self._lock:
            state = await self._registry.state()
            await self._refresh_past(state)
            if self._past is None:
                return PublishOutcome("unchanged", "nothing is published yet")
            book = self._rows.book
            allowed = without_revoked(self._past.snapshot, book)
            moved, held = await self._held_back(with_shares(follow_rollouts(allowed, book.rows), self._shares()))
            later = msgspec.structs.replace(moved, epoch=state.next_epoch, compiled_unix_s=self._wall_clock())
            content = await asyncio.to_thread(indexed, later, self._past)
            if content.content_hash == state.snapshot_hash:
                message = f"unchanged: the registry holds this content as epoch {state.epoch}"
                return PublishOutcome("unchanged", message, state.epoch, state.snapshot_hash, held=held)
            await self._registry.put(content, self._past if self._past_hash == state.snapshot_hash else None)
            self._past, self._past_hash = content, content.content_hash
        message = f"published epoch {later.epoch}: channels follow their rollouts, revoked keys are removed"
        return PublishOutcome("published", message, later.epoch, content.content_hash, held=held)

    async def _place(self, compiled: Compiled, loaded: Loaded) -> PlacedSnapshot:
        """Return the compiled snapshot joined with the registry's rows (API-declared models and keys, and the rollouts'
        channels), or as it is without rows."""
        if self._rows is None:
            return PlacedSnapshot(compiled.snapshot)
        past = self._past.snapshot if self._past is not None else None
        staged = self._staged(loaded.objects) if self._staged is not None else None
        return await place_snapshot(compiled.snapshot, loaded.objects, past, self._rows, self._registry, bases=staged)

    async def _held_back(self, wanted: Snapshot) -> tuple[Snapshot, tuple[str, ...]]:
        """Return the snapshot to publish now, and the held flips. The fleet is queried only if a channel moves."""
        past = self._past.snapshot if self._past is not None else None
        if not has_flips(past, wanted):
            return wanted, ()
        heartbeats = [heard.heartbeat for heard in await self._registry.fleet() if not heard.is_silent]
        held = hold_flips(past, wanted, serving_of(heartbeats))
        return held.snapshot, held.flips

    async def _refresh_past(self, state: RegistryState) -> None:
        """Read the registry's content at the start, and after another publisher has written; its digests become known.
        So a model stays if its artifact store is unavailable now."""
        if self._knows_the_past and state.snapshot_hash == self._past_hash:
            return
        content = await self._registry.content() if state.epoch else None
        if content is not None:
            self._resolver.add_known(_digests_in(content.snapshot))
        self._past, self._past_hash = content, state.snapshot_hash
        self._knows_the_past = True


def _is_available_to_all(state: RegistryState, snapshot_hash: str) -> bool:
    """Return True if all followers can get this content: if the floor is above its epoch, some cannot."""
    return state.snapshot_hash == snapshot_hash and state.epoch >= state.epoch_floor


def _digests_in(snapshot: Snapshot) -> dict[str, Digest]:
    return {version.artifact_uri: version.digest for model in snapshot.models for version in model.versions}


def _counts(snapshot: Snapshot, problems: int) -> str:
    left_out = f"; {problems} object(s) left out" if problems else ""
    models = sum(1 for model in snapshot.models if model.versions)
    return f"{len(snapshot.tenants)} tenants, {models} models, {len(snapshot.pools)} pools{left_out}"
