"""Publication on one machine: seed adapters to S3, build a publisher, and keep the registry's snapshot current.

The registry and S3 are processes of the same fleet and not ready at the start, so an unavailable one is retried soon
and is no error. The models directory depends on the engine, which may change while the controller runs; artifact
addresses then resolve to other digests.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from functions.api.ids import RolloutId
from functions.api.snapshot import Snapshot
from functions.artifacts.errors import ArtifactError
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import DEFAULT_BUCKET, S3Settings, S3Store, load_credentials
from functions.controller.autoscaling.clients import PoolsClient, RoleNotifier, agents_http
from functions.controller.local.context import PlanContext
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.following import RowsFollower
from functions.controller.snapshot.publish import Publisher, PublishOutcome
from functions.controller.snapshot.registry_client import (
    EpochConflict,
    LastHeartbeat,
    RegistryClient,
    RegistryRefused,
    RegistryUnavailable,
    registry_http,
)
from functions.controller.snapshot.resolve import DigestReader, Resolver
from functions.fleet.role_credentials import RoleCredentials, read_for


@dataclass(frozen=True, slots=True)
class Seeded:
    published: tuple[str, ...]  # artifact addresses that are in the store now
    problems: tuple[str, ...]


def open_store(context: PlanContext) -> S3Store:
    return S3Store(S3Settings(context.s3_url, load_credentials(context.layout.secret("s3.json"))))


def seed_adapters(store: S3Store, adapters_dir: Path) -> Seeded:
    """Publish every adapter version; a rejected one does not block the others. Blocks.

    `registry/adapters/<tenant>/<name>/<version>/` becomes `s3://shoal-models/<tenant>/<name>/<version>`. Git is the
    source of truth here: an adapter that was trained again replaces the one its pointer pointed at, and so does one
    that an earlier build published in a form that this build cannot read.
    """
    published: list[str] = []
    problems: list[str] = []
    store.ensure_bucket()
    for directory in sorted(path for path in adapters_dir.glob("*/*/*") if path.is_dir()):
        uri = f"s3://{DEFAULT_BUCKET}/{'/'.join(directory.parts[-3:])}"
        try:
            publish_directory(store, directory, uri, replace=True)
            published.append(uri)
        except (ArtifactError, OSError) as error:
            problems.append(f"{uri}: {error}")
    return Seeded(tuple(published), tuple(problems))


# Most held versions are loaded within a second, so a held publication is retried soon. Each try costs a compilation,
# so the pauses grow to `retry_s` for a version that never loads.
HELD_RETRY_S = 0.3
HELD_GROWTH = 1.3

_log = logging.getLogger(__name__)

Publish = Callable[[], Awaitable[PublishOutcome]]


class Publication:
    """Owned by one event loop."""

    def __init__(self, publish: Publish, context: Callable[[], PlanContext], adapters_dir: Path) -> None:
        self.last = PublishOutcome("unavailable", "not published yet")
        self.snapshot: Snapshot | None = None  # last known content of the registry
        self.seeded: tuple[str, ...] = ()
        self.seed_problems: tuple[str, ...] = ()
        self._publish = publish
        self._context = context
        self._adapters_dir = adapters_dir

    async def seed(self, s3_is_ready: Callable[[], Awaitable[bool]], changed: asyncio.Event, retry_s: float) -> None:
        """Wait until the object store is ready, and retry until all publishable adapters are published; then set
        `changed` to publish what waited for an artifact."""
        while True:
            if await s3_is_ready() and await asyncio.to_thread(self._seed_once):
                break
            await asyncio.sleep(retry_s)
        changed.set()

    async def run(self, changed: asyncio.Event, retry_s: float, resync_s: float) -> None:
        """Publish until cancelled: immediately after a change, soon while something is missing or held, else
        periodically (`resync_s`)."""
        held_s = HELD_RETRY_S
        while True:
            held_s = HELD_RETRY_S if changed.is_set() else held_s
            changed.clear()
            self.last = await self._publish()
            self.snapshot = self.last.snapshot or self.snapshot
            again_s = min(retry_s, held_s) if self.last.held else retry_s
            held_s = min(retry_s, held_s * HELD_GROWTH) if self.last.held else HELD_RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(resync_s if self.last.complete else again_s):
                    await changed.wait()

    def _seed_once(self) -> bool:
        try:
            with contextlib.closing(open_store(self._context())) as store:
                seeded = seed_adapters(store, self._adapters_dir)
        except ArtifactError as error:
            self.seed_problems = (str(error),)
            return False
        self.seeded, self.seed_problems = seeded.published, seeded.problems
        _log.info("published %d artifacts to S3; %d refused", len(seeded.published), len(seeded.problems))
        return True


class LocalClients:
    """Clients of the registry, of S3 and of agents, created when first needed. Owned by one event loop."""

    def __init__(self, context: Callable[[], PlanContext], rows_file: Path, on_rows: Callable[[], None]) -> None:
        """`rows_file` stores the registry's rows over a restart; `on_rows` is called when they change."""
        self._context = context
        self.rows = RowsFollower(self.rollout_client, rows_file, on_rows)
        self.shares: Callable[[], Mapping[RolloutId, int]] = dict  # percents that the replicas of bases' rollouts bear
        self._models_root: Path | None = None
        self._publisher: Publisher | None = None
        self._client: httpx.AsyncClient | None = None
        self._agents: httpx.AsyncClient | None = None

    async def publisher(self) -> Publisher:
        """Return the publisher for the present engine; raise OSError or ArtifactError if its files are missing."""
        context = self._context()
        if self._publisher is None or context.models_root != self._models_root:
            self._publisher = await self._make_publisher(context)
            self._models_root = context.models_root
        return self._publisher

    async def replicas(self) -> tuple[LastHeartbeat, ...] | str:
        """Return every replica's last heartbeat, or as text the reason why the registry does not answer."""
        try:
            return await (await self.registry()).fleet()
        except (RegistryUnavailable, RegistryRefused, EpochConflict) as error:
            return str(error)
        except OSError as error:
            return f"the registry cannot be reached: {error}"

    async def registry(self) -> RegistryClient:
        context = self._context()
        if self._client is None:
            self._client = registry_http(context.layout.ca_file)
        return RegistryClient(self._client, context.registry_url, (await self._credentials(context)).bearer("publish"))

    async def rollout_client(self) -> RolloutClient:
        return RolloutClient(await self.registry())

    async def pools_client(self) -> PoolsClient:
        return PoolsClient(await self.registry())

    async def role_notifier(self) -> RoleNotifier:
        """Return a notifier for agents on this machine, whose ports require a credential."""
        if self._agents is None:
            self._agents = agents_http()
        return RoleNotifier(self._agents, (await self._credentials(self._context())).secret("standing"))

    async def close(self) -> None:
        for client in (self._client, self._agents):
            if client is not None:
                await client.aclose()

    async def _make_publisher(self, context: PlanContext) -> Publisher:
        store = await asyncio.to_thread(open_store, context)
        resolver = Resolver(DigestReader(store, context.models_root))
        return Publisher(registry=await self.registry(), resolver=resolver, rows=self.rows, shares=self.shares)

    async def _credentials(self, context: PlanContext) -> RoleCredentials:
        return await asyncio.to_thread(read_for, "controller", context.layout.credentials("controller"))
