"""Push base weights into the store, in chunks that are hashed while they are read, as `bases/<name>/<version>`.

    1 list the source; load the journal of an interrupted push from the store
    2 per file: read a chunk, hash it, put it unless the store has it; save the journal after each file
    3 put the manifest, then the pointer; put again what garbage collection deleted meanwhile; put the tokenizer
    4 delete the journal

Memory is bounded by PARALLEL_PUTS chunks (8 to 64 MiB each), whatever the size of a file. A push can be killed at any
point: the next one hashes only the file that was being read, and sends only what the store lacks. If the version
exists already, the source is hashed first. Equal content has its missing chunks put again; other content raises
VersionTaken with nothing sent. All calls block.

Related modules: base_sources (what is read), publish (chunks, manifest, pointer), tokenizers.
"""

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts import tokenizers
from functions.artifacts.base_sources import SourceFile, WeightSource, read_whole
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, VersionTaken
from functions.artifacts.locations import WeightsName
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, MODEL_LIMITS, Chunk, FileEntry, Manifest
from functions.artifacts.publish import PARALLEL_PUTS, point, put_chunk, put_manifest
from functions.artifacts.s3 import S3Store
from functions.artifacts.workers import run_all

JOURNAL_NAME = "push.json"  # stored next to the pointer
_JOURNAL_MAX_BYTES = 2 * MANIFEST_MAX_BYTES


class Hashed(msgspec.Struct, frozen=True):
    """One file of the source: its tag when it was hashed, and its entry in the manifest."""

    tag: str
    entry: FileEntry


class Journal(msgspec.Struct, frozen=True):
    chunk_bytes: int
    files: tuple[Hashed, ...] = ()


class PushProgress(Protocol):
    """Callback for each chunk that was processed; several threads call it."""

    def __call__(self, size_bytes: int, *, sent: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class PushedBase:
    name: WeightsName
    artifact_uri: str
    manifest: Manifest
    digest: Digest
    chunks: int
    sent_chunks: int
    sent_bytes: int
    resumed_files: int  # files that an interrupted push had hashed


@dataclass(slots=True)
class _Push:
    store: S3Store
    source: WeightSource
    name: WeightsName
    on_chunk: PushProgress
    reread: bool
    sends: bool = True
    sent: set[str] = field(default_factory=set)
    sent_bytes: int = 0
    met: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def journal_key(self) -> str:
        return f"{self.name.location(self.store.bucket).prefix}/{JOURNAL_NAME}"


def total_bytes(files: tuple[SourceFile, ...]) -> int:
    return sum(file.size_bytes for file in files)


def push(
    store: S3Store,
    source: WeightSource,
    name: WeightsName,
    files: tuple[SourceFile, ...],
    *,
    on_chunk: PushProgress = lambda size_bytes, *, sent: None,
    reread: bool = False,
) -> PushedBase:
    """Push `files`, as the source listed them, as the base weights `name`, with the tokenizer; resume an interrupted
    push. Raise VersionTaken if the version holds other content, ArtifactRefused if a file changes meanwhile. With
    `reread`, chunks that the store already has are read back and replaced if they are corrupt."""
    location = name.location(store.bucket)
    pointed = _pointed(store, location.pointer_key)
    pushing = _Push(store, source, name, on_chunk, reread, sends=pointed is None)
    manifest, resumed_files = _hashed(pushing, files)
    document = manifests.encode(manifest)
    if pointed is not None and pointed != document:
        taken = manifests.digest_of(pointed)
        raise VersionTaken(f"{name} is {taken} already, and a version never changes: push under a new version")
    if pointed is not None or resumed_files:
        _put_missing(pushing, manifest, reread=reread and pointed is not None)
    digest = put_manifest(store, manifest)
    point(store, location, document)
    _put_missing(pushing, manifest, reread=False)
    put_manifest(store, manifest)
    tokenizers.publish_files(store, manifest, lambda entry: read_whole(source, entry.path, entry.size_bytes))
    store.delete([pushing.journal_key])
    chunks = len(manifest.distinct_chunks())
    return PushedBase(
        name, location.uri, manifest, digest, chunks, len(pushing.sent), pushing.sent_bytes, resumed_files
    )


def _hashed(pushing: _Push, files: tuple[SourceFile, ...]) -> tuple[Manifest, int]:
    """Hash the source's files and, unless the version exists already, send their chunks. Return the manifest and the
    number of files whose hashes were in the journal of an interrupted push."""
    chunk_bytes = manifests.chunk_bytes_for(total_bytes(files))
    known = _journal(pushing, chunk_bytes)
    done: list[Hashed] = []
    resumed = 0
    for file in files:
        former = known.get((file.path, file.tag, file.size_bytes))
        if former is not None:
            resumed += 1
            done.append(former)
            if pushing.sends:
                pushing.on_chunk(file.size_bytes, sent=False)
            continue
        done.append(Hashed(file.tag, _read_file(pushing, file, chunk_bytes)))
        if pushing.sends:
            pushing.store.put(pushing.journal_key, msgspec.json.encode(Journal(chunk_bytes, tuple(done))))
    manifest = Manifest(chunk_bytes=chunk_bytes, files=tuple(hashed.entry for hashed in done))
    manifests.check(manifest, MODEL_LIMITS)
    return manifest, resumed


def _read_file(pushing: _Push, file: SourceFile, chunk_bytes: int) -> FileEntry:
    """Hash the file in one pass, while sender threads process its chunks, and return its manifest entry. Raise
    ArtifactRefused if the file became shorter."""
    whole = hashlib.sha256()
    hashes: list[str] = []
    waiting: deque[Future[None]] = deque()
    with ThreadPoolExecutor(PARALLEL_PUTS, "chunks to the store") as senders:
        for start in range(0, file.size_bytes, chunk_bytes):
            expected = min(chunk_bytes, file.size_bytes - start)
            content = pushing.source.read(file.path, start, expected)
            if len(content) != expected:
                raise ArtifactRefused(f"{file.path} became shorter while it was being read; push again")
            whole.update(content)
            hashes.append(hashlib.sha256(content).hexdigest())
            chunk = Chunk(hashes[-1], expected, file.path, start)
            waiting.append(senders.submit(_process_chunk, pushing, chunk, content))
            del content
            if len(waiting) >= PARALLEL_PUTS:
                waiting.popleft().result()
        for each in waiting:
            each.result()
    return FileEntry(path=file.path, size_bytes=file.size_bytes, sha256=whole.hexdigest(), chunks=tuple(hashes))


def _process_chunk(pushing: _Push, chunk: Chunk, content: bytes) -> None:
    sent = False
    with pushing.lock:
        is_new = chunk.sha256 not in pushing.met
        pushing.met.add(chunk.sha256)
    if pushing.sends and is_new:
        sent = put_chunk(pushing.store, chunk, lambda: content, reread=pushing.reread)
        _count(pushing, chunk, sent=sent)
    pushing.on_chunk(chunk.size_bytes, sent=sent)


def _count(pushing: _Push, chunk: Chunk, *, sent: bool) -> None:
    if sent:
        with pushing.lock:
            pushing.sent.add(chunk.sha256)
            pushing.sent_bytes += chunk.size_bytes


def _put_missing(pushing: _Push, manifest: Manifest, *, reread: bool) -> None:
    """Put every chunk that the store lacks, reading it from the source again. With `reread`, corrupt chunks in the
    store are replaced too."""

    def put(chunk: Chunk) -> None:
        _count(pushing, chunk, sent=put_chunk(pushing.store, chunk, _reader(pushing, chunk), reread=reread))

    run_all(put, manifest.distinct_chunks(), parallel=PARALLEL_PUTS)


def _reader(pushing: _Push, chunk: Chunk) -> Callable[[], bytes]:
    def read() -> bytes:
        content = pushing.source.read(chunk.path, chunk.offset_bytes, chunk.size_bytes)
        if hashlib.sha256(content).hexdigest() != chunk.sha256:
            raise ArtifactRefused(f"{chunk.path} changed since it was hashed; push again")
        return content

    return read


def _pointed(store: S3Store, pointer_key: str) -> bytes | None:
    """Return the manifest that the version points at, or None if there is none that this build reads."""
    try:
        document = store.read_small(pointer_key, MANIFEST_MAX_BYTES)
        manifests.decode(document)
    except (ArtifactMissing, ArtifactRefused):
        return None
    return document


def _journal(pushing: _Push, chunk_bytes: int) -> dict[tuple[str, str, int], Hashed]:
    """Return the entries that an interrupted push has journaled, by path, tag and size; empty if there is no journal
    for this chunk size, or no readable one."""
    try:
        found = msgspec.json.decode(pushing.store.read_small(pushing.journal_key, _JOURNAL_MAX_BYTES), type=Journal)
    except (ArtifactMissing, ArtifactCorrupt, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if found.chunk_bytes != chunk_bytes:
        return {}
    return {(each.entry.path, each.tag, each.entry.size_bytes): each for each in found.files}
