"""Tokenizers of base models in the store: the few small files of a base that gateways read.

    tokenizers/sha256/<hex of the base's digest>/manifest.json     the base's own manifest, canonical bytes
    tokenizers/sha256/<hex of the base's digest>/tokenizer.json    and the others of FILES that the manifest names

The snapshot's digest of the base's version names the manifest, and the manifest names each file by its sha256. A
reader verifies both and need not trust the writer. The manifest is put last, so its presence proves that all files
are there. Tokenizers are not collected as garbage (some megabytes per base).

On a reader's disk each base is one directory, renamed into place once it is whole and verified again when a process
starts. TokenizerCache limits their bytes; those in use stay. All calls block: run them in a thread.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactError, ArtifactRefused, CacheFailed
from functions.artifacts.locations import tokenizer_key
from functions.artifacts.manifest import MANIFEST_MAX_BYTES, FileEntry, Manifest
from functions.artifacts.s3 import S3Store

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")
FILE_MAX_BYTES = 64 * 1024**2  # the largest vocabularies take 35 MB
_MANIFEST = "manifest.json"
_HALF_MADE = "."  # first character of a directory's name until it is whole


def publish(store: S3Store, directory: Path) -> Digest:
    """Put the tokenizer of the base model in `directory`, which must have a manifest, and return the base's digest.

    Raise ArtifactCorrupt if a file does not match the manifest, ArtifactRefused if there is no tokenizer. Equal
    content is put again, so a second run repairs corrupt objects in the store.
    """
    _, manifest = directories.read_manifest(directory)

    def read(entry: FileEntry) -> bytes:
        directories.verify_file(directory, entry)
        return (directory / entry.path).read_bytes()

    return publish_files(store, manifest, read)


def publish_files(store: S3Store, manifest: Manifest, read: Callable[[FileEntry], bytes]) -> Digest:
    """Put the tokenizer of a base whose small files `read` returns, and return the base's digest. Raise ArtifactCorrupt
    if a file does not match the manifest, ArtifactRefused if there is no tokenizer."""
    document = manifests.encode(manifest)
    digest = manifests.digest_of(document)
    for entry in _entries(manifest):
        content = read(entry)
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise ArtifactCorrupt(f"{entry.path} is not what the base's manifest says")
        store.put(tokenizer_key(manifests.hex_of(digest), entry.path), content)
    store.put(tokenizer_key(manifests.hex_of(digest), _MANIFEST), document)
    return digest


class TokenizerCache:
    """A directory of tokenizers by the digests of their bases. Several processes of a host may share it."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def held(self, digest: Digest) -> Path | None:
        """Return the base's verified directory and record that it is in use now, or return None if it is missing or
        damaged."""
        directory = self._root / manifests.hex_of(digest)
        try:
            document = (directory / _MANIFEST).read_bytes()
            for entry in _entries(manifests.decode_verified(document, digest)):
                directories.verify_file(directory, entry)
        except (OSError, ArtifactError):
            return None
        os.utime(directory)  # time of last use
        return directory

    def obtain(self, store: S3Store, digest: Digest, in_use: Collection[Digest]) -> Path:
        """Return the directory with the base's tokenizer, fetching it if it is missing or damaged; raise ArtifactError.
        Bases not `in_use` may be deleted for it."""
        found = self.held(digest)
        if found is not None:
            return found
        key_hex = manifests.hex_of(digest)
        document = store.read_small(tokenizer_key(key_hex, _MANIFEST), MANIFEST_MAX_BYTES)
        entries = _entries(manifests.decode_verified(document, digest))
        try:
            self._make_room(len(document) + sum(entry.size_bytes for entry in entries), {digest, *in_use})
            made = self._root / f"{_HALF_MADE}{key_hex}.{os.getpid()}"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            for entry in entries:
                directories.write_durably(made / entry.path, _read(store, key_hex, entry))
            directories.write_durably(made / _MANIFEST, document)
            return self._put_in_place(made, digest)
        except OSError as error:
            raise CacheFailed(f"{digest} cannot be written to the disk: {error.strerror}") from error

    def _put_in_place(self, made: Path, digest: Digest) -> Path:
        """Rename the made directory over a missing or damaged one and return its path; if another process has installed
        a sound one, use that."""
        directory = self._root / manifests.hex_of(digest)
        if self.held(digest) is None:
            shutil.rmtree(directory, ignore_errors=True)
            made.rename(directory)
            directories.sync_directory(self._root)
        else:
            shutil.rmtree(made)
        return directory

    def _make_room(self, needed_bytes: int, in_use: Collection[Digest]) -> None:
        """Delete half-made and then the least recently used bases until `needed_bytes` fit; raise CacheFailed if those
        in use leave too little room."""
        self._root.mkdir(parents=True, exist_ok=True)
        keep = {manifests.hex_of(digest) for digest in in_use}
        used = {path: _size_bytes(path) for path in self._root.iterdir() if path.is_dir()}
        free_bytes = self._max_bytes - sum(used.values())
        for path in sorted(used, key=lambda path: (not path.name.startswith(_HALF_MADE), path.stat().st_mtime)):
            if free_bytes >= needed_bytes:
                return
            if path.name not in keep:
                shutil.rmtree(path)
                free_bytes += used[path]
        if free_bytes < needed_bytes:
            raise CacheFailed(
                f"{needed_bytes} bytes do not fit into {self._max_bytes} together with the tokenizers in use"
            )


def _entries(manifest: Manifest) -> list[FileEntry]:
    """Return the manifest's entries that readers of prompts need. Raise ArtifactRefused if there is neither a
    tokenizer.json nor a config.json, or if a file is too large."""
    entries = [entry for entry in manifest.files if entry.path in FILES]
    if not any(entry.path in ("tokenizer.json", "config.json") for entry in entries):
        raise ArtifactRefused("the base has no tokenizer.json")
    for entry in entries:
        if entry.size_bytes > FILE_MAX_BYTES:
            raise ArtifactRefused(f"{entry.path} has {entry.size_bytes} bytes, over the limit of {FILE_MAX_BYTES}")
    return entries


def _read(store: S3Store, key_hex: str, entry: FileEntry) -> bytes:
    content = store.read_small(tokenizer_key(key_hex, entry.path), entry.size_bytes)
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ArtifactCorrupt(f"{entry.path} in the store is not what the base's manifest says")
    return content


def _size_bytes(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.iterdir())
