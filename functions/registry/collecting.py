"""Run garbage collection in the registry's process, periodically or at the operator's request.

    take the lock (one registry at a time) → retire artifacts that nothing names → collect (functions.artifacts.collect)

A pass keeps the digests of versions and artifacts in the database, both versions of every active rollout, everything
in the published snapshot, and all adapters that live replicas have loaded. Without a snapshot or the bus these are
not all known, and no pass starts: garbage costs money, but a missing chunk costs a model.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from functions.api.ids import Digest
from functions.artifacts.collect import Collected, collect
from functions.artifacts.collect_reach import CollectedStore
from functions.registry.fleet_watch import FleetWatch
from functions.registry.sql import artifacts, catalogue, rollouts
from functions.registry.sql.audit import Actor
from functions.registry.sql.database import Database
from functions.registry.sql.ledger import SqlLedger
from functions.registry.store import SnapshotStore

_log = logging.getLogger(__name__)
_ACTOR = Actor("registry")
_LOCK = "collecting"

Answer = TypeVar("Answer")


class NotNow(Exception):
    """Raised if no pass can run now, with the reason. Nothing was deleted."""


@dataclass(slots=True)
class GarbageCollector:
    """Garbage collector of one registry. Owned by one event loop; a pass runs in a thread."""

    objects: CollectedStore
    database: Database
    store: SnapshotStore
    fleet: FleetWatch
    grace_s: float
    wall_clock: Callable[[], float]

    async def collect_periodically(self, interval_s: float) -> None:
        """Run a pass after each interval until cancelled; a pass that cannot run is logged and skipped."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                done = await self.collect_once()
            except NotNow as why:
                _log.info("garbage collection skipped: %s", why)
            else:
                _log.info(
                    "garbage: %d of %d candidates deleted, %d bytes", done.deleted, done.candidates, done.deleted_bytes
                )

    async def collect_once(self, *, dry_run: bool = False) -> Collected:
        """Run one pass and return its result; `dry_run` deletes nothing. Raises NotNow if the snapshot or the bus is
        missing or another registry is collecting."""
        loop = asyncio.get_running_loop()
        self._check_knowledge()

        def on_loop(work: Callable[[], Answer]) -> Answer:
            future: Future[Answer] = Future()
            loop.call_soon_threadsafe(lambda: _run_into(future, work))
            return future.result(timeout=60)

        return await asyncio.to_thread(self._pass, on_loop, dry_run)

    def _pass(self, on_loop: Callable[[Callable[[], set[str]]], set[str]], dry_run: bool) -> Collected:
        now_unix_s = self.wall_clock()
        with self.database.exclusive_lock(_LOCK) as is_ours:
            if not is_ours:
                raise NotNow("another registry is collecting")
            if not dry_run:
                before_unix_s = now_unix_s - self.grace_s
                self.database.write(_ACTOR, lambda write: artifacts.retire(write, before_unix_s))

            def roots() -> set[Digest]:
                published = on_loop(self._published)
                loaded = on_loop(self._loaded)
                stored = self.database.read(lambda connection: _stored(connection, loaded))
                return {Digest(digest) for digest in published | stored}

            return collect(
                self.objects,
                roots,
                SqlLedger(self.database),
                now_unix_s=now_unix_s,
                grace_s=self.grace_s,
                dry_run=dry_run,
            )

    def _check_knowledge(self) -> None:
        if not self.store.epoch:
            raise NotNow("no snapshot is published, so the models in git are unknown")
        if not self.fleet.bus_connected:
            raise NotNow("the bus is unavailable, so the adapters on replicas are unknown")

    def _published(self) -> set[str]:
        self._check_knowledge()
        models = self.store.feed.content.snapshot.models
        return {version.digest for model in models for version in model.versions}

    def _loaded(self) -> set[str]:
        """Return the engine names of adapters on live replicas: `model@sha256:<16 hex>`."""
        return {name for seen in self.fleet.replicas() for name in seen.heartbeat.adapters}


def _stored(connection: Connection, loaded: set[str]) -> set[str]:
    digests = catalogue.named_digests(connection) | artifacts.kept_digests(connection)
    digests |= rollouts.active_digests(connection)
    # Replicas report only the beginning of a digest. The version may be deleted already, but its object must stay.
    return digests | {name.rpartition("@")[2] for name in loaded if "@sha256:" in name}


def _run_into(future: "Future[Answer]", work: Callable[[], Answer]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
