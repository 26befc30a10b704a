"""Publishing: the configuration's content becomes the registry's snapshot, when it is another.

The one entry for a controller process; call it at the start, when files change, and now and then besides:

    wire = RegistryWire(http_client, registry_url, token)
    publisher = Publisher(wire=wire, resolver=Resolver(DigestReader(s3_store, models_root)))
    outcome = await publisher.publish_if_changed(config_dir)
    outcome.message       # in words: "published epoch 7: 2 tenants, 4 models, 1 pools"
    outcome.problems      # file and line each: a configuration that is refused, or versions left out
    outcome.complete      # False: something is missing; try again soon

It never raises for a bad file, a missing artifact or a registry that is away. Level-triggered: each call compares what
should be with what the registry holds, so a lost registry gets everything again, above every epoch ever seen.
Laws: a configuration with one problem publishes nothing; an empty one publishes nothing (a wrong path must not close
all tenants out); the epoch grows only when the content's hash differs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from functions.api import snapshot as snapshots
from functions.api.ids import Digest
from functions.api.loader import Loaded, load_directory
from functions.api.problems import ConfigInvalid
from functions.api.snapshot import Snapshot
from functions.controller.compile import Compiled, compile_snapshot, unpinned_artifacts
from functions.controller.publish_wire import (
    EpochTaken,
    RegistryRefused,
    RegistryState,
    RegistryUnavailable,
    RegistryWire,
)
from functions.controller.resolve import Resolver
from functions.decisions.backoff import BackoffPolicy, delay_s

ATTEMPTS = 4
BACKOFF = BackoffPolicy(base_s=0.2, cap_s=2.0)


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    kind: Literal["published", "unchanged", "invalid", "unavailable", "refused"]
    message: str
    epoch: int = 0  # what the registry holds now, as far as is known
    snapshot_hash: str = ""
    problems: tuple[str, ...] = ()
    complete: bool = False


class Publisher:
    """Owned by one event loop; calls queue up behind each other."""

    def __init__(
        self,
        *,
        wire: RegistryWire,
        resolver: Resolver,
        revision: str = "local",
        wall_clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._wire = wire
        self._resolver = resolver
        self._revision = revision
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._knows_the_past = False

    async def publish_if_changed(self, config_dir: Path) -> PublishOutcome:
        async with self._lock:
            try:
                loaded = await asyncio.to_thread(load_directory, [config_dir], relative_to=config_dir)
            except ConfigInvalid as error:
                problems = tuple(str(problem) for problem in error.problems)
                return _invalid(f"the configuration has {len(problems)} problem(s); nothing was published", problems)
            if not loaded.objects:
                return _invalid(f"{config_dir} holds no Tenant, Model or InferenceService; nothing was published", ())
            return await self._publish_retrying(loaded)

    async def _publish_retrying(self, loaded: Loaded) -> PublishOutcome:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._publish(loaded)
            except RegistryRefused as error:
                return PublishOutcome("refused", str(error))
            except (RegistryUnavailable, EpochTaken) as error:
                last = str(error)
            if attempt < ATTEMPTS:
                await self._sleep(delay_s(attempt, BACKOFF))
        return PublishOutcome("unavailable", f"the registry took nothing in {ATTEMPTS} attempts: {last}")

    async def _publish(self, loaded: Loaded) -> PublishOutcome:
        state = await self._wire.state()
        await self._learn_the_past()
        resolved = await self._resolver.resolve(unpinned_artifacts(loaded.objects))
        compiled = compile_snapshot(
            loaded.objects,
            resolved.digests,
            epoch=state.next_epoch,
            revision=self._revision,
            compiled_unix_s=self._wall_clock(),
        )
        problems = (*(str(problem) for problem in compiled.problems), *resolved.problems)
        snapshot_hash = snapshots.content_hash(compiled.snapshot)
        if _holds(state, snapshot_hash):
            message = f"unchanged: the registry holds this content as epoch {state.epoch}"
            return PublishOutcome("unchanged", message, state.epoch, snapshot_hash, problems, complete=not problems)
        await self._wire.put(compiled.snapshot)
        message = f"published epoch {compiled.snapshot.epoch}: {_counts(compiled)}"
        epoch = compiled.snapshot.epoch
        return PublishOutcome("published", message, epoch, snapshot_hash, problems, complete=not problems)

    async def _learn_the_past(self) -> None:
        """Once: what the last snapshot knew of artifacts, so that a store that is away now takes no model away."""
        if self._knows_the_past:
            return
        snapshot = await self._wire.current()
        if snapshot is not None:
            self._resolver.remember(_digests_in(snapshot))
        self._knows_the_past = True


def _holds(state: RegistryState, snapshot_hash: str) -> bool:
    """Whether everyone can get this content from the registry: a floor above its epoch means that some cannot."""
    return state.snapshot_hash == snapshot_hash and state.epoch >= state.epoch_floor


def _digests_in(snapshot: Snapshot) -> dict[str, Digest]:
    return {version.artifact_uri: version.digest for model in snapshot.models for version in model.versions}


def _counts(compiled: Compiled) -> str:
    snapshot = compiled.snapshot
    left_out = f"; {len(compiled.problems)} thing(s) left out" if compiled.problems else ""
    return f"{len(snapshot.tenants)} tenants, {len(snapshot.models)} models, {len(snapshot.pools)} pools{left_out}"


def _invalid(message: str, problems: tuple[str, ...]) -> PublishOutcome:
    return PublishOutcome("invalid", message, problems=problems)
