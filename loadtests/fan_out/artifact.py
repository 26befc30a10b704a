"""A random artifact of a given size, which cannot be deduplicated or compressed, in the measurement's store."""

import hashlib
from pathlib import Path
from random import Random

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.manifest import FileEntry, Manifest
from functions.artifacts.publish import put_content
from functions.artifacts.s3 import S3Store

_SHARDS = 4


def publish_random(store: S3Store, folder: Path, size_bytes: int, chunk_bytes: int, seed: int = 1) -> Digest:
    """Write the artifact to `folder`, publish it, remove the files and return its digest."""
    folder.mkdir()
    rng = Random(seed)
    entries = []
    for shard in range(_SHARDS):
        name = f"model-{shard}.safetensors"
        share = size_bytes // _SHARDS + (size_bytes % _SHARDS if shard == 0 else 0)
        entries.append(_write(folder / name, name, share, chunk_bytes, rng))
    manifest = Manifest(chunk_bytes=chunk_bytes, files=tuple(entries))
    manifests.check(manifest, manifests.MODEL_LIMITS)
    digest = put_content(store, folder, manifest)
    for entry in entries:
        (folder / entry.path).unlink()
    folder.rmdir()
    return digest


def _write(path: Path, name: str, size_bytes: int, chunk_bytes: int, rng: Random) -> FileEntry:
    whole, chunks = hashlib.sha256(), []
    with path.open("xb") as file:
        for start in range(0, size_bytes, chunk_bytes):
            content = rng.randbytes(min(chunk_bytes, size_bytes - start))
            whole.update(content)
            chunks.append(hashlib.sha256(content).hexdigest())
            file.write(content)
    return FileEntry(path=name, size_bytes=size_bytes, sha256=whole.hexdigest(), chunks=tuple(chunks))
