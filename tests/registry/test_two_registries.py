"""Two registry processes on one Postgres, killed in the middle of concurrent promotions: one linear history."""

import os
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from functions.api import snapshot as snapshots
from functions.fleet.snapshots import EPOCH_HEADER, SNAPSHOT_PATH
from functions.registry.sql import audit, changes, rollouts
from functions.registry.sql.artifacts import StoredArtifact, put_artifact
from functions.registry.sql.audit import Actor
from functions.registry.sql.database import Database
from functions.registry.sql.engine import database_url
from functions.registry.sql.rollouts import Filter
from tests.ports import free_port
from tests.registry.catalogue_rig import digest, published
from tests.registry.postgres import Postgres
from tests.registry.rig import TOKEN
from tests.roles import RoleProcess, start

pytestmark = [pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(600)]
LETTERS = "cdef0123456789"
MODELS = 4
_READY_TIMEOUT_S = 90.0


@dataclass
class Process:
    """A registry that can be killed and started again on its port."""

    folder: Path
    database_url: str
    is_published_to: bool  # otherwise it gets what was published at the other one
    port: int = field(default_factory=free_port)
    running: RoleProcess | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "token").write_text(TOKEN)
        env = {
            **os.environ,
            "SHOAL_REGISTRY_PORT": str(self.port),
            "SHOAL_REGISTRY_INTERNAL_TOKEN_FILE": str(self.folder / "token"),
            "SHOAL_REGISTRY_STATE_DIR": str(self.folder / "state"),
            "SHOAL_REGISTRY_BUS_URL": "valkey://127.0.0.1:1/0",
            "SHOAL_REGISTRY_DATABASE_URL": self.database_url,
        }
        with (self.folder / "log").open("ab") as log:
            self.running = start("functions.registry", env=env, stderr=log)
        with self.client() as client:
            self._until_ready(client)
            if self.is_published_to:
                client.put(SNAPSHOT_PATH, content=snapshots.encode(published(epoch=int(time.time()) % 10**9)))
            epoch = client.head(SNAPSHOT_PATH).headers[EPOCH_HEADER]
            assert int(epoch) > 0, "it begins without what was published"

    def kill(self) -> None:
        assert self.running is not None
        self.running.send_signal(signal.SIGKILL)
        self.running.wait()
        shutil.rmtree(self.folder / "state")  # as a pod's disk

    def client(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60, trust_env=False)

    def _until_ready(self, client: httpx.Client) -> None:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                if client.get("/readyz").json().get("database_ready"):
                    return
            except httpx.TransportError:
                pass
            assert self.running is not None and self.running.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)
        raise AssertionError("the registry was not ready: " + (self.folder / "log").read_text()[-2000:])


@pytest.fixture
def database_of_both(postgres: Postgres, tmp_path: Path) -> Iterator[Database]:
    made = Database(database_url(postgres.new_database(), tmp_path))
    made.prepare()
    yield made
    made.close()


@pytest.fixture
def both(database_of_both: Database, tmp_path: Path) -> Iterator[list[Process]]:
    url = database_of_both.url.set(drivername="postgresql").render_as_string(hide_password=False)
    them = [Process(tmp_path / name, url, is_published_to=name == "one") for name in ("one", "two")]
    for it in them:
        it.start()
    yield them
    for it in them:
        it.kill()


def prepared(database: Database) -> None:
    for letter in LETTERS:
        row = StoredArtifact(digest(letter), "", "", 1, {})
        database.write(Actor("test"), lambda write, row=row: put_artifact(write, row))


def promote(process: Process, model: int, number: int) -> str:
    """Do one person's afternoon of work: a version, a channel, and the rollout. Return the acknowledged results."""
    letter = LETTERS[number % len(LETTERS)]
    path = f"/v1/models/acme/m{model}"
    try:
        with process.client() as client:
            body = {"digest": digest(letter), "base_model": "base"}
            client.put(f"{path}/versions/v{letter}", json=body)
            moved = client.post(f"{path}/channels/stable", json={"version": f"v{letter}"})
            if moved.status_code == 202:
                rollout = moved.json()["rollout"]["id"]
                verb = ("promote", "rollback", "pause")[number % 3]
                client.post(
                    f"/internal/v1/rollouts/{rollout}/events", json={"event": {"is": "loaded"}, "lock_version": 0}
                )
                client.post(f"/v1/rollouts/{rollout}/{verb}", json={})
            elif moved.status_code == 409:
                client.post(f"/v1/rollouts/{moved.json()['rollout']}/rollback", json={})
            return str(moved.status_code)
    except (httpx.TransportError, KeyError):
        return "cut off"


def test_history_stays_linear_through_kills(both: list[Process], database_of_both: Database) -> None:
    database = database_of_both
    prepared(database)
    told: dict[str, int] = defaultdict(int)
    lock = threading.Lock()
    kills = 3

    def work(number: int) -> None:
        answer = promote(both[number % 2], number % MODELS, number)
        with lock:
            told[answer] += 1

    with ThreadPoolExecutor(12) as pool:
        working = [pool.submit(work, number) for number in range(240)]
        for _ in range(kills):
            time.sleep(1.0)  # an arbitrary moment of the work
            both[1].kill()
            both[1].start()
        for each in working:
            each.result()
    print(f"\nanswers: {dict(told)}")

    verified = database.read(audit.verify)
    assert verified.broken_at is None, verified
    entries = list(reversed(database.read(lambda c: audit.page(c, None, 10_000))))
    numbers = [entry["change"] for entry in entries]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, numbers[-1] + 1))
    assert numbers[-1] == database.read(changes.position)[1]
    print(f"{len(entries)} entries over {numbers[-1]} writes, head {verified.head[:12]}, {kills} kills")
    check_rollouts(database, entries)


def check_rollouts(database: Database, entries: list[dict[str, object]]) -> None:
    """Check for at most one active rollout per channel at every moment of the audit, and that rows match the events."""
    active: dict[str, set[str]] = defaultdict(set)
    target: dict[str, str] = {}
    for entry in entries:
        subject, detail = str(entry["subject"]), entry["detail"]
        assert isinstance(detail, dict)
        if entry["action"] == "rollout.created":
            target[subject] = detail["target"]
            active[detail["target"]].add(subject)
        elif str(entry["action"]).startswith("rollout."):
            over = detail["state"] not in ("loading", "running", "paused")
            (active[target[subject]].discard if over else active[target[subject]].add)(subject)
        assert all(len(them) <= 1 for them in active.values()), entry
    rows = database.read(lambda c: rollouts.page(c, Filter(), None, 10_000))
    assert {stored.rollout.id for stored in rows if stored.rollout.is_active} == set().union(*active.values())
    for stored in rows:
        events = database.read(lambda c, id_=stored.rollout.id: rollouts.history(c, id_))
        assert [event["lock_version"] for event in events] == list(range(1, stored.rollout.lock_version + 1))
    assert rows, "nothing was promoted"
