"""`kill -9` at every step of an ingest, of naming what it published, and of a collection, against a real store.

After each kill, named artifacts are whole, visible artifacts are verified and the next run completes. Once
sessions have expired and the grace period has passed, the store holds the named artifacts and nothing else.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from functions.api.ids import Digest, TenantId
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.collect import collect
from functions.artifacts.collect_reach import collected
from functions.artifacts.fetch import fetch
from functions.artifacts.ingest import Expectation, Ingest, IngestPolicy
from functions.artifacts.s3 import S3Settings, S3Store
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.gc_ledger import FileLedger
from tests.artifacts.kill_points import killed_at_each_step
from tests.soak import every

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]  # a process for each of up to fifty steps
EXPECT = Expectation(tenant=TenantId("acme"))
SESSION_S = 100.0
GRACE_S = 10.0


class Names:
    """Named digests, in a file that survives killed processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run("create table if not exists named (digest text primary key)")

    def add(self, digest: Digest) -> None:
        self._run("insert or ignore into named values (?)", digest)

    def clear(self) -> None:
        self._run("delete from named")

    def all(self) -> set[Digest]:
        return {Digest(row[0]) for row in self._run("select digest from named")}

    def _run(self, query: str, *values: str) -> list[tuple[str]]:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60.0)) as database:
            return database.execute(query, values).fetchall()


@dataclass
class Rig:
    """A bucket of its own, a ledger, names, and a clock that only the test moves."""

    ingest: Ingest
    names: Names
    folder: Path
    now_unix_s: float = 1_700_000_000.0

    @property
    def store(self) -> S3Store:
        return self.ingest.store

    def with_own_connections(self) -> "Rig":
        """Return a copy for a forked child, which must not share connections with its parent."""
        return replace(self, ingest=replace(self.ingest, store=S3Store(self.store.settings)))

    def upload_and_name(self, source: Path) -> Digest:
        with self.ingest.upload() as upload:
            for path in sorted(source.iterdir()):
                with upload.file(path.name) as writer:
                    writer.write(path.read_bytes())
            digest = upload.finish(EXPECT).digest
        with self.ingest.holding(digest):
            self.names.add(digest)
        return digest

    def collect(self) -> None:
        collect(self.store, self.names.all, self.ingest.ledger, now_unix_s=self.now_unix_s, grace_s=GRACE_S)

    def check_what_is_named(self) -> None:
        """Every named digest can be fetched, which verifies each byte."""
        cache = ArtifactCache(self.folder / "cache")
        for digest in self.names.all():
            cache.discard(digest)
            fetch(self.store, cache, digest)

    def objects(self) -> set[str]:
        return {stored.key for stored in self.store.list("") if collected(stored.key)}

    def settle(self) -> None:
        """Let all sessions expire, then run two passes."""
        self.now_unix_s += SESSION_S + GRACE_S
        self.collect()
        self.now_unix_s += GRACE_S
        self.collect()
        self.ingest.clean_staging()


@pytest.fixture
def rig(s3_settings: S3Settings, tmp_path: Path) -> Iterator[Rig]:
    store = S3Store(replace(s3_settings, bucket="kills"))
    store.ensure_bucket()
    store.delete(stored.key for stored in store.list(""))
    made = Rig(None, Names(tmp_path / "names.sqlite"), tmp_path)  # type: ignore[arg-type]
    made.ingest = Ingest(
        store,
        tmp_path / "staging",
        IngestPolicy(session_s=SESSION_S),
        ledger=FileLedger(tmp_path / "ledger.sqlite"),
        wall_clock=lambda: made.now_unix_s,
    )
    yield made
    store.close()


@every(18)
def test_an_ingest_killed_at_every_step(rig: Rig, every: int) -> None:
    sources: list[Path] = []

    def prepare() -> None:
        """Make an adapter with no file in the store yet; the previous one becomes garbage."""
        rig.names.clear()
        number = len(sources) + 1
        source = make_adapter(rig.folder / "sources" / str(number), seed=number, lora_alpha=number)
        (source / "README.md").write_text(f"# number {number}\n")
        sources.append(source)

    def work() -> None:
        rig.with_own_connections().upload_and_name(sources[-1])

    def check() -> None:
        rig.check_what_is_named()
        digest = rig.upload_and_name(sources[-1])
        rig.settle()
        rig.check_what_is_named()
        assert rig.names.all() == {digest}
        assert len(rig.objects()) == 4  # three chunks and the manifest
        assert list(rig.ingest.staging_root.iterdir()) == []

    steps = killed_at_each_step(rig.folder / "staging", prepare=prepare, work=work, check=check, every=every)
    assert len(steps) * every > 30
    for kind, at_least in (("http.client.send", 8), ("open", 3), ("sqlite3.connect", 6)):
        assert every > 1 or sum(step.startswith(kind) for step in steps) >= at_least


@every(10)
def test_a_collection_killed_at_every_step(rig: Rig, every: int) -> None:
    keeps, goes = (make_adapter(rig.folder / name, seed=seed) for name, seed in (("keeps", 2), ("goes", 3)))
    kept: list[Digest] = []

    def prepare() -> None:
        """Publish two artifacts that share files; one is no longer named and due for deletion."""
        rig.names.clear()
        rig.upload_and_name(goes)
        rig.names.clear()
        kept[:] = [rig.upload_and_name(keeps)]
        rig.collect()
        rig.now_unix_s += GRACE_S

    def check() -> None:
        rig.check_what_is_named()
        rig.settle()
        rig.check_what_is_named()
        assert len(rig.objects()) == 4  # three chunks and the manifest
        assert rig.names.all() == set(kept)

    steps = killed_at_each_step(
        rig.folder / "staging",
        prepare=prepare,
        work=lambda: rig.with_own_connections().collect(),
        check=check,
        every=every,
    )
    assert steps
    assert every > 1 or sum(step.startswith("http.client.send") for step in steps) >= 4


@every(10)
def test_a_collection_killed_at_every_step_while_its_garbage_is_published_again(rig: Rig, every: int) -> None:
    source = make_adapter(rig.folder / "source", seed=4)

    def prepare() -> None:
        rig.names.clear()
        rig.upload_and_name(source)
        rig.names.clear()
        rig.collect()
        rig.now_unix_s += GRACE_S

    def check() -> None:
        """A new collector finishes the pending deletions that the ingest waits for; then the ingest publishes."""
        hurried = replace(rig.ingest, sleep=lambda _: rig.collect())
        digest = Rig(hurried, rig.names, rig.folder, rig.now_unix_s).upload_and_name(source)
        rig.check_what_is_named()
        rig.settle()
        assert rig.names.all() == {digest}
        rig.check_what_is_named()

    killed_at_each_step(
        rig.folder / "staging",
        prepare=prepare,
        work=lambda: rig.with_own_connections().collect(),
        check=check,
        every=every,
    )
