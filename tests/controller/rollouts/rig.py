"""A real registry (SQLite, HTTP in this process), controllers, replicas and a gateway; all of it in virtual time.

Replicas load what the snapshot names unless a test says otherwise; the gateway places requests as the real one does
(`functions.decisions.rollout.split`) and reports what became of them.
"""

import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from functions.api.ids import Digest, EngineName, TenantId, engine_name
from functions.api.loader import Loaded
from functions.api.snapshot import ModelEntry, Snapshot, content_hash
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.rollouts.following import RowsFollower
from functions.controller.snapshot.publish import Publisher, PublishOutcome
from functions.controller.snapshot.registry_client import LastHeartbeat, RegistryClient
from functions.controller.snapshot.resolve import Resolver
from functions.decisions.catalogue import Catalogue
from functions.decisions.rollout.evidence import GroupStats, encoded_group
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.split import choose
from functions.fleet import heartbeat as heartbeats
from functions.fleet import rollout_heartbeat
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.rollout_heartbeat import RolloutHeartbeat, StageStats
from functions.fleet.rollout_stats import EvidenceBook
from functions.registry.app import make_app
from functions.registry.declared import DeclaredCatalogue
from functions.registry.fleet_watch import FleetWatch
from functions.registry.principal import Authenticator
from functions.registry.services import RegistryServices
from functions.registry.sql.catalogue_writes import CatalogueLimits
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from functions.registry.store import SnapshotStore
from tests.controller.configs import base, load, lora, pool, tenant
from tests.decisions.rollout.rollouts import digest
from tests.registry.rig import TOKEN, ScriptedBus

BOT = "acme/bot"
ACME = TenantId("acme")


def policy(name: str = "default", stages: str = "", rest: str = "minRequests: 20") -> str:
    stages = stages or (
        '{percent: 10, duration: 10s, autoHalt: ["error_rate > 2%", "p50_latency > 1.5x"]}, '
        '{percent: 50, duration: 10s, autoHalt: ["error_rate > 2%"]}, {percent: 100}'
    )
    return f"""\
apiVersion: shoal.dev/v1alpha1
kind: RolloutPolicy
metadata: {{name: {name}}}
spec: {{stages: [{stages}], {rest}}}
"""


def fleet(*versions: str, stable: str, policies: tuple[str, ...] = (policy(),), more: tuple[str, ...] = ()) -> Loaded:
    bot = lora(BOT, *versions, channels=f"{{stable: {stable}}}")
    return load(pool(), tenant("acme", "ci"), base(), bot, *policies, *more)


def digest_of(artifact_uri: str) -> Digest:
    return digest(artifact_uri.rsplit("/", maxsplit=1)[-1])


def adapter(version: str) -> EngineName:
    return engine_name(BOT, digest_of(version))  # type: ignore[arg-type]


@dataclass
class Behaviour:
    """Results of one version's requests."""

    error_ratio: float = 0.0
    median_ms: float = 100.0


@dataclass
class Gateway:
    """Places requests by the published snapshot and adds up their results."""

    book: EvidenceBook
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # requests by version
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    is_mute: bool = False
    _stages: dict[tuple[str, int], dict[str, GroupStats]] = field(default_factory=dict)
    _sequence: int = 0

    def requests(self, snapshot: Snapshot, count: int) -> None:
        catalogue = Catalogue(snapshot, content_hash(snapshot))
        resolved = catalogue.resolve(ACME, BOT)
        assert resolved is not None
        for _ in range(count):
            group, version = "control", resolved.version
            if resolved.split is not None:
                group = choose(resolved.split, ACME, None, str(self.rng.random()), None).group
                version = resolved.split.candidate.version if group == "candidate" else version
                stage = (resolved.split.rollout, resolved.split.stage)
                groups = self._stages.setdefault(stage, {"candidate": GroupStats(), "control": GroupStats()})
                self._answer(groups[group], self.behaviours.get(version, Behaviour()))
            self.seen[version] = self.seen.get(version, 0) + 1

    def _answer(self, group: GroupStats, behaviour: Behaviour) -> None:
        group.requests += 1
        if self.rng.random() < behaviour.error_ratio:
            group.errors += 1
            return
        group.total_ms.add(behaviour.median_ms * self.rng.lognormvariate(0.0, 0.3))

    def report(self, now_unix_s: float) -> None:
        if self.is_mute:
            return
        self._sequence += 1
        told = tuple(
            StageStats(rollout, stage, encoded_group(groups["candidate"]), encoded_group(groups["control"]))  # type: ignore[arg-type]
            for (rollout, stage), groups in self._stages.items()
        )
        heartbeat = RolloutHeartbeat("gateway-1", 1, self._sequence, now_unix_s, told)
        assert self.book.receive_message(rollout_heartbeat.encode(heartbeat), now_unix_s)


@dataclass
class Replica:
    id: str
    adapters: set[EngineName] = field(default_factory=set)
    refuses: dict[EngineName, str] = field(default_factory=dict)
    loads: bool = True

    def follow(self, snapshot: Snapshot) -> None:
        if not self.loads:
            return
        wanted = {
            version.engine_name for model in snapshot.models if model.type == "lora" for version in model.versions
        }
        self.adapters = wanted - set(self.refuses)

    def heartbeat(self, sequence: int) -> Heartbeat:
        return Heartbeat(
            replica_id=self.id, pool="base", host="h", port=1, phase="ready", sequence=sequence, incarnation=1,
            sent_unix_s=0.0, adapters=tuple(sorted(self.adapters)), adapter_failures=dict(self.refuses),
        )  # fmt: skip


class Controller:
    """The parts of one controller process, connected as in `functions.controller.process`."""

    def __init__(self, rig: "Rig", copy: Path | None, fence: int | None = None) -> None:
        self._rig = rig
        self.registry = RegistryClient(
            rig.client, "http://registry", TOKEN, (lambda: fence) if fence is not None else None
        )
        self.rows = RowsFollower(self._rollout_client, copy)
        self.rows.load()
        self.driver = RolloutDriver(self.rows, self._rollout_client, self._fleet, wall_clock=lambda: rig.now_unix_s)
        self._publisher = Publisher(
            registry=self.registry,
            resolver=Resolver(self._read_digest, fresh_s=0.0),
            rows=self.rows,
            wall_clock=lambda: rig.now_unix_s,
            sleep=rig.no_sleep,
        )

    async def publish(self) -> PublishOutcome:
        return await self._publisher.publish(self._rig.declared, "main@" + "1" * 40)

    async def follow_rows(self) -> PublishOutcome:
        return await self._publisher.follow_rows()

    async def step(self) -> PublishOutcome:
        """Do what the controller's tasks do within a second."""
        await self.rows.fetch_changes()
        await self.driver.judge_rollouts()
        return await self.publish()

    def _read_digest(self, artifact_uri: str) -> Digest:
        return self._rig.read_digest(artifact_uri)

    async def _rollout_client(self) -> RolloutClient:
        return RolloutClient(self.registry)

    async def _fleet(self) -> tuple[LastHeartbeat, ...]:
        return await self.registry.fleet()


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_unix_s = 1000.0
        self.declared = fleet("v1", stable="v1")
        self.store = SnapshotStore(folder / "snapshot.json")
        self.evidence = EvidenceBook()
        self.gateway = Gateway(self.evidence)
        self.replicas = [Replica("a"), Replica("b")]
        self.controllers: list[Controller] = []
        self.requests_per_s = 100
        self.read_digest: Callable[[str], Digest] = digest_of
        self._watch = FleetWatch(ScriptedBus(), clock=self.clock)
        self._sequence = 0
        self.open_registry(folder)

    def clock(self) -> float:
        return self.now_unix_s

    async def without_sql(self) -> None:
        """Cut the registry off from its database; the snapshot's routes need none."""
        await self._another_process(self.folder / "not" / "there", is_prepared=False)

    async def other_database(self) -> None:
        """Restart the registry with an empty database, at the same address."""
        (self.folder / "other").mkdir()
        await self._another_process(self.folder / "other")

    async def _another_process(self, folder: Path, *, is_prepared: bool = True) -> None:
        self.database.close()
        former = self.client
        self.open_registry(folder, is_prepared=is_prepared)
        for controller in self.controllers:
            controller.registry._client = self.client
        await former.aclose()

    def open_registry(self, folder: Path, *, is_prepared: bool = True) -> None:
        self.database = Database(database_url(None, folder), clock=self.clock)
        if is_prepared:
            self.database.prepare()
        services = RegistryServices(
            database=self.database,
            declared=DeclaredCatalogue(self.store),
            authenticator=Authenticator(self.store, RoleCredentials(TOKEN), b"pepper", self.clock),
            limits=CatalogueLimits(models_per_tenant=50, versions_per_model=20, channels_per_model=3),
            evidence=self.evidence,
            ingesting=None,
            pepper=b"pepper",
            key_environment="test",
            max_keys_per_tenant=3,
        )
        self.app = make_app(self.store, self._watch, RoleCredentials(TOKEN), self.clock, services=services)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://registry", timeout=60)

    def controller(self, name: str = "one", fence: int | None = None) -> Controller:
        made = Controller(self, self.folder / f"rows-{name}.json", fence)
        self.controllers = [made]
        return made

    async def no_sleep(self, _: float) -> None:
        return

    @property
    def snapshot(self) -> Snapshot:
        assert self.store.current is not None
        return self.store.current.snapshot

    @property
    def bot(self) -> ModelEntry:
        return next(model for model in self.snapshot.models if model.id == BOT)

    async def second(self) -> None:
        """Run one second: traffic, reports, heartbeats, and a step of each controller."""
        self.now_unix_s += 1.0
        if self.store.current is not None:
            self.gateway.requests(self.snapshot, self.requests_per_s)
            self.gateway.report(self.now_unix_s)
            for replica in self.replicas:
                replica.follow(self.snapshot)
        self._sequence += 1
        for replica in self.replicas:
            self._watch.receive_message(heartbeats.encode(replica.heartbeat(self._sequence)))
        for controller in self.controllers:
            await controller.step()

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            await self.second()

    async def until(self, done: Callable[[], bool], at_most_s: int = 200) -> int:
        """Run until `done`; return the number of seconds."""
        for second in range(at_most_s):
            if done():
                return second
            await self.second()
        assert done(), f"not within {at_most_s} s: {await self.rollouts()}"
        return at_most_s

    async def rollouts(self) -> list[Rollout]:
        """Return the registry's rollouts, oldest first."""
        page = await RolloutClient(RegistryClient(self.client, "http://registry", TOKEN)).changes(0, 0.0)
        return sorted((row.rollout for row in page.rollouts), key=lambda row: row.created_unix_s)

    async def order(self, rollout: str, what: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {TOKEN}"}
        return await self.client.post(f"/v1/rollouts/{rollout}/{what}", headers=headers, json={})


@asynccontextmanager
async def rig(folder: Path, empty_database: Path) -> AsyncIterator[Rig]:
    """Build a rig on a copy of `empty_database`, which has its schema: migrating takes longer than most tests."""
    shutil.copy(empty_database, folder)
    made = Rig(folder)
    async with made.client:
        try:
            yield made
        finally:
            made.store.close()
            made.database.close()
