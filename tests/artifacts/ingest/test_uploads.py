"""Uploads become artifacts; the whole hostile corpus is refused and nothing is stored."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from functions.api.ids import TenantId
from functions.artifacts import directories
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused, CacheFailed, StoreUnavailable
from functions.artifacts.ingest import Expectation, Ingest, Ingested, IngestPolicy, StagingBudget, Upload
from functions.artifacts.ingest.ingest import object_keys
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import ADAPTER_LIMITS, hex_of
from functions.artifacts.signatures import SignaturePolicy
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.gc_ledger import FileLedger
from tests.artifacts.hostile import AGAINST_BASE, BASE, HOSTILE, Hostile
from tests.artifacts.memory_store import MemoryStore
from tests.artifacts.signing import make_key, sign

ACME = TenantId("acme")
EXPECT = Expectation(tenant=ACME)


@pytest.fixture
def ledger() -> FileLedger:
    return FileLedger(":memory:")


@pytest.fixture
def ingest(tmp_path: Path, ledger: FileLedger) -> Ingest:
    return Ingest(MemoryStore(), tmp_path / "staging", ledger=ledger)


def send(upload: Upload, directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with upload.file(path.relative_to(directory).as_posix(), path.stat().st_size) as writer:
                content = path.read_bytes()
                for start in range(0, len(content), 60_000):
                    writer.write(content[start : start + 60_000])


def ingest_directory(ingest: Ingest, directory: Path, expect: Expectation = EXPECT) -> Ingested:
    with ingest.upload() as upload:
        send(upload, directory)
        return upload.finish(expect)


def nothing_is_left(ingest: Ingest, ledger: FileLedger) -> None:
    assert ingest.store.objects == {}
    assert not ingest.staging_root.exists() or list(ingest.staging_root.iterdir()) == []
    assert ledger.open_ingests() == frozenset()


def test_an_upload_becomes_an_artifact(ingest: Ingest, ledger: FileLedger, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source")
    ingested = ingest_directory(ingest, source, replace(EXPECT, base=BASE))
    manifest = directories.build_manifest(source)
    assert ingest.store.objects.keys() == object_keys(ingested.digest, manifest)
    assert ingested.total_bytes == manifest.total_bytes
    assert ingested.facts.target_modules == ("q_proj", "v_proj")
    assert list(ingest.staging_root.iterdir()) == []
    assert ledger.open_ingests() == frozenset()


def test_the_same_files_are_the_same_artifact(ingest: Ingest, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source")
    first = ingest_directory(ingest, source)
    before = dict(ingest.store.objects)
    assert ingest_directory(ingest, source) == first
    assert ingest.store.objects == before


# Some files are refused by name before a byte is written, so before the checks of the whole upload.
_BY_NAME = {"folder": "is in a folder", "hidden file": "is not allowed"}
_NOT_UPLOADABLE = ("link", "pipe", "linked weights")  # an upload contains bytes only


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in _NOT_UPLOADABLE])
def test_the_hostile_corpus_is_refused(ingest: Ingest, ledger: FileLedger, tmp_path: Path, name: str) -> None:
    hostile: Hostile = HOSTILE[name]
    source = tmp_path / "hostile"
    source.mkdir()
    hostile.build(source)
    words = _BY_NAME.get(name, hostile.words)
    with pytest.raises(ArtifactRefused, match=words):
        ingest_directory(ingest, source)
    nothing_is_left(ingest, ledger)


@pytest.mark.parametrize("name", AGAINST_BASE)
def test_what_does_not_fit_the_base_is_refused(ingest: Ingest, ledger: FileLedger, tmp_path: Path, name: str) -> None:
    source = tmp_path / "hostile"
    source.mkdir()
    AGAINST_BASE[name].build(source)
    with pytest.raises(ArtifactRefused, match=AGAINST_BASE[name].words):
        ingest_directory(ingest, source, replace(EXPECT, base=BASE))
    nothing_is_left(ingest, ledger)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is not allowed"),
        (".", "is not allowed"),
        ("..", "is not allowed"),
        ("../adapter_config.json", "is not allowed"),
        ("a/../../adapter_config.json", "is not allowed"),
        ("/etc/cron.d/x.json", "is not allowed"),
        ("\\\\host\\share\\x.json", "is not allowed"),
        ("C:x.json", "is not allowed"),
        ("x\x00.json", "is not allowed"),
        ("x\n.json", "is not allowed"),
        ("x y.json", "is not allowed"),
        ("ünïcode.json", "is not allowed"),
        ("adapter_config．json", "is not allowed"),  # fullwidth stop
        ("adapter_con\u200bfig.json", "is not allowed"),
        ("-rf.json", "is not allowed"),
        (".git", "is not allowed"),
        ("a" * 200 + ".json", "is not allowed"),
        ("a/b/c/d/e/f.json", "is not allowed"),
        ("con.json", "is not allowed"),
        ("AUX.txt", "is not allowed"),
        ("a/x.json", "is in a folder"),
        ("shoal-manifest.json", "the manifest's own name"),
        ("SHOAL-MANIFEST.JSON", "the manifest's own name"),
        ("con", "is not allowed"),
        ("adapter_model.bin", "does not belong"),
        ("adapter_model.safetensors.zip", "does not belong"),
        ("run.py", "does not belong"),
        ("model.sig.exe", "does not belong"),
    ],
)
def test_names_are_refused_before_a_byte_is_written(ingest: Ingest, ledger: FileLedger, name: str, words: str) -> None:
    with ingest.upload() as upload:
        with pytest.raises(ArtifactRefused, match=words):
            upload.file(name)
        assert [path for path in ingest.staging_root.rglob("*") if path.is_file()] == []
    nothing_is_left(ingest, ledger)


def test_a_name_given_twice(ingest: Ingest, ledger: FileLedger) -> None:
    with ingest.upload() as upload:
        upload.file("adapter_config.json").close()
        for again in ("adapter_config.json", "ADAPTER_CONFIG.json"):
            with pytest.raises(ArtifactRefused, match="is named twice"):
                upload.file(again)
    nothing_is_left(ingest, ledger)


def test_ten_thousand_files(ingest: Ingest, ledger: FileLedger) -> None:
    opened = 0
    with pytest.raises(ArtifactRefused, match="more than 16 files"), ingest.upload() as upload:
        for number in range(10_000):
            upload.file(f"f{number}.json").close()
            opened += 1
    assert opened == ADAPTER_LIMITS.max_files
    nothing_is_left(ingest, ledger)


def test_no_files(ingest: Ingest, ledger: FileLedger) -> None:
    with ingest.upload() as upload, pytest.raises(ArtifactRefused, match="no files arrived"):
        upload.finish(EXPECT)
    nothing_is_left(ingest, ledger)


def test_five_gib_announced(ingest: Ingest, ledger: FileLedger) -> None:
    with ingest.upload() as upload, pytest.raises(ArtifactRefused, match="is announced with 5368709120 bytes"):
        upload.file("adapter_model.safetensors", 5 * 1024**3)
    nothing_is_left(ingest, ledger)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (replace(ADAPTER_LIMITS, max_file_bytes=1_000_000), r"adapter_model\.safetensors is over the limit of 1000000"),
        (replace(ADAPTER_LIMITS, max_total_bytes=1_000_000), "over the limit of 1000000 bytes in all"),
    ],
)
def test_an_endless_body(ingest: Ingest, ledger: FileLedger, limits: object, words: str) -> None:
    bounded = replace(ingest, policy=IngestPolicy(limits=limits))
    written = 0
    with bounded.upload() as upload, pytest.raises(ArtifactRefused, match=words):
        writer = upload.file("adapter_model.safetensors")
        try:
            while True:
                writer.write(bytes(65_536))
                written += 65_536
        except ArtifactRefused as refusal:
            writer.__exit__(type(refusal), refusal, None)
            raise
    assert written <= 1_000_000
    nothing_is_left(bounded, ledger)


def test_a_file_that_broke_off_is_not_whole(ingest: Ingest, ledger: FileLedger) -> None:
    with ingest.upload() as upload:
        with pytest.raises(ConnectionError), upload.file("adapter_config.json") as writer:
            writer.write(b"{")
            raise ConnectionError
        with pytest.raises(ArtifactRefused, match=r"adapter_config\.json did not arrive completely"):
            upload.finish(EXPECT)
    nothing_is_left(ingest, ledger)


def test_a_client_that_leaves(ingest: Ingest, ledger: FileLedger) -> None:
    with pytest.raises(ConnectionError), ingest.upload() as upload:
        upload.file("adapter_config.json").close()
        raise ConnectionError
    nothing_is_left(ingest, ledger)


def test_unclosed_files_are_closed_with_the_upload(ingest: Ingest, ledger: FileLedger) -> None:
    """A form that ends in the middle of a file leaves its writer open; warnings are errors here."""
    with ingest.upload() as upload:
        writer = upload.file("adapter_config.json")
        writer.write(b"{")
    with pytest.raises(ValueError, match="closed file"):
        writer.write(b"}")
    nothing_is_left(ingest, ledger)


def test_upload_leaves_room_for_others(ingest: Ingest, ledger: FileLedger) -> None:
    crowded = replace(ingest, policy=IngestPolicy(reserve_free_bytes=2**62))
    with crowded.upload() as upload, pytest.raises(CacheFailed, match="no room to receive this"):
        upload.file("adapter_config.json")
    nothing_is_left(crowded, ledger)


def test_a_staging_directory_that_cannot_be(ingest: Ingest, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(CacheFailed, match="cannot be written"),
        replace(ingest, staging_root=tmp_path / "file").upload(),
    ):
        pass


def test_only_the_owner_reads_what_is_not_yet_checked(ingest: Ingest) -> None:
    with ingest.upload() as upload:
        upload.file("adapter_config.json").close()
        (staged,) = ingest.staging_root.iterdir()
        assert staged.stat().st_mode & 0o077 == 0


def test_cleaning_removes_only_uploads_of_ended_processes(ingest: Ingest) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with ingest.upload() as upload:
            upload.file("adapter_config.json").close()
            os.write(writer, b"x")
            os._exit(1)  # as if killed: no cleaning
    os.read(reader, 1)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    with ingest.upload() as upload:
        upload.file("README.md").close()
        assert ingest.clean_staging() == 1
        assert [path.name for path in ingest.staging_root.rglob("*") if path.is_file()] == ["README.md"]


# Signatures at publish.


def test_a_signature_is_verified_and_travels(ingest: Ingest, tmp_path: Path) -> None:
    private, public = make_key(tmp_path / "keys")
    source = make_adapter(tmp_path / "source")
    sign(source, private)
    signing = replace(ingest, signatures=SignaturePolicy(tenant_keys={ACME: (public,)}, required=True))
    ingested = ingest_directory(signing, source)
    assert ingested.signature == "verified"
    assert (source / "model.sig").read_bytes() in ingest.store.objects.values()


def test_an_unsigned_or_tampered_adapter_is_not_published(ingest: Ingest, ledger: FileLedger, tmp_path: Path) -> None:
    private, public = make_key(tmp_path / "keys")
    source = make_adapter(tmp_path / "source")
    signing = replace(ingest, signatures=SignaturePolicy(tenant_keys={ACME: (public,)}, required=True))
    with pytest.raises(ArtifactRefused, match=r"there is no model\.sig"):
        ingest_directory(signing, source)
    sign(source, private)
    make_adapter(source, seed=9)
    with pytest.raises(ArtifactRefused, match="is not valid"):
        ingest_directory(signing, source)
    nothing_is_left(signing, ledger)


# Protocol with the garbage collector.


@pytest.fixture
def deleting(ingest: Ingest, ledger: FileLedger, tmp_path: Path) -> Iterator[tuple[Path, frozenset[str]]]:
    """An adapter whose objects are in the store and are being deleted."""
    source = make_adapter(tmp_path / "source")
    ingested = ingest_directory(ingest, source)
    keys = object_keys(ingested.digest, directories.build_manifest(source))
    ledger.mark(keys, 0.0)
    ledger.deleting(keys, 0.0, 0.0)
    yield source, keys


def test_ingest_waits_for_deletions_and_puts_objects_again(
    ingest: Ingest, ledger: FileLedger, deleting: tuple[Path, frozenset[str]]
) -> None:
    source, keys = deleting
    slept: list[float] = []

    def collector_finishes(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            ingest.store.delete(keys)
            ledger.deleted(keys)

    ingest_directory(replace(ingest, sleep=collector_finishes), source)
    assert len(slept) == 3
    assert keys == ingest.store.objects.keys()


def test_waiting_for_a_deletion_ends(ingest: Ingest, ledger: FileLedger, deleting: tuple[Path, frozenset[str]]) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    waiting = replace(ingest, sleep=sleep, clock=lambda: now_s)
    with pytest.raises(StoreUnavailable, match="are being deleted"):
        ingest_directory(waiting, deleting[0])
    assert now_s == pytest.approx(waiting.policy.deletion_wait_s, abs=1.0)
    assert ledger.open_ingests() == frozenset()


def test_ingest_unmarks_deletion_candidates(ingest: Ingest, ledger: FileLedger, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source")
    ingest_directory(ingest, source)
    ledger.mark(frozenset(ingest.store.objects), 0.0)
    ingest_directory(ingest, source)
    assert ledger.candidates() == frozenset()


def test_expired_session_cannot_finish(ingest: Ingest, ledger: FileLedger, tmp_path: Path) -> None:
    source = make_adapter(tmp_path / "source")
    with pytest.raises(StoreUnavailable, match="took longer than its limit of 7200 s"), ingest.upload() as upload:
        send(upload, source)
        ledger.deleting((), 0.0, 2.0**40)  # a collector, far in the future
        upload.finish(EXPECT)


def test_held_artifact_is_whole_and_stays(ingest: Ingest, ledger: FileLedger, tmp_path: Path) -> None:
    ingested = ingest_directory(ingest, make_adapter(tmp_path / "source"))
    keys = frozenset(ingest.store.objects)
    with ingest.holding(ingested.digest) as held:
        assert (held.digest, held.total_bytes, held.keys) == (ingested.digest, ingested.total_bytes, keys)
        assert ledger.open_ingests() == {held.session}
        ledger.mark(keys, 0.0)
        assert ledger.deleting(keys, 0.0, 0.0) == frozenset()
    assert ledger.open_ingests() == frozenset()


@pytest.mark.parametrize("lost", ["manifest", "chunk"])
def test_incomplete_artifact_cannot_be_held(ingest: Ingest, ledger: FileLedger, tmp_path: Path, lost: str) -> None:
    source = make_adapter(tmp_path / "source")
    ingested = ingest_directory(ingest, source)
    chunk = next(directories.build_manifest(source).chunks())
    ingest.store.delete([manifest_key(hex_of(ingested.digest)) if lost == "manifest" else chunk_key(chunk.sha256)])
    kind: type[ArtifactError] = ArtifactMissing
    with pytest.raises(kind, match="the store has"), ingest.holding(ingested.digest):
        pass
    assert ledger.open_ingests() == frozenset()


def test_many_uploads_at_once_do_not_meet(ingest: Ingest, tmp_path: Path) -> None:
    shared = replace(ingest, ledger=FileLedger(tmp_path / "ledger.sqlite"))
    sources = [make_adapter(tmp_path / str(seed), seed=seed) for seed in range(4)]
    found: dict[int, Ingested] = {}

    def one(number: int) -> None:
        found[number] = ingest_directory(shared, sources[number % 4])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert len({ingested.digest for ingested in found.values()}) == 4
    assert list(shared.staging_root.iterdir()) == []


# Disk budget shared by all uploads of a process.

MIB = 1024**2


def bounded(tmp_path: Path, max_bytes: int) -> Ingest:
    policy = IngestPolicy(reserve_free_bytes=0)
    return Ingest(MemoryStore(), tmp_path / "staging", policy, budget=StagingBudget(max_bytes))


def junk(upload: Upload, size_mib: int) -> int:
    """Write zeros into the upload and return how many MiB it accepted."""
    taken = 0
    with upload.file("adapter_model.safetensors") as writer:
        for _ in range(size_mib):
            writer.write(bytes(MIB))
            taken += 1
    return taken


def test_two_uploads_of_junk_stay_within_the_volume(tmp_path: Path) -> None:
    """A process cannot see an emptyDir's limit: two uploads of 2.2 GB got the pod evicted."""
    ingest = bounded(tmp_path, 256 * MIB)
    with ingest.upload(ACME) as first, ingest.upload(TenantId("globex")) as second:
        assert junk(first, 100) == 100
        with pytest.raises(CacheFailed, match="no room to receive this"):
            junk(second, 200)
        assert ingest.budget.held_bytes <= 256 * MIB
        used = sum(path.stat().st_size for path in ingest.staging_root.rglob("*") if path.is_file())
        assert used <= ingest.budget.held_bytes
    assert ingest.budget.held_bytes == 0
    with ingest.upload(ACME) as upload:
        assert junk(upload, 100) == 100


def test_one_tenant_leaves_room_for_the_next() -> None:
    budget, had = StagingBudget(3072), []
    with ExitStack() as stack:
        for tenant in ("a", "b", "c"):
            room = stack.enter_context(budget.reservation(tenant))
            with pytest.raises(CacheFailed):
                for size_bytes in range(1, 3073):
                    room.grow_to(size_bytes)
            had.append(room.held_bytes)
    assert had == [1536, 768, 384] and budget.held_bytes == 0


def test_ingest_from_the_store_counts_against_the_budget(tmp_path: Path) -> None:
    ingest = Ingest(MemoryStore(), tmp_path / "staging")
    digest = ingest_directory(ingest, make_adapter(tmp_path / "adapter")).digest
    with pytest.raises(CacheFailed, match="no room to receive this"):
        replace(ingest, budget=StagingBudget(1)).check(digest, EXPECT)
