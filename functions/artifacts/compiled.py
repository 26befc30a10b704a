"""Compile caches of engines, stored as companions of a base's weights and installed for the next engine.

    compiled/sha256/<hex of the weights' digest>/index.json    the list of companions, the newest last
    compiled/sha256/<hex of the weights' digest>/<hex>/…       each companion's pointer, which protects its content

A companion is an artifact with one file, PACK_NAME: a tar of `torch_compile_cache` below VLLM_CACHE_ROOT. The engine
identifies an entry by a hash of its version, arguments, environment and model code (the companion's `keys`), and
ignores entries that do not match. So `engine` and `accelerator` only save nodes useless downloads.

An engine executes the code in its compile cache, so the source must be trusted. The folder `compiled` belongs to the
store: no artifact URI can name it, so tenants cannot upload there (`locations`); writing needs the store's write
credential. Every byte is verified against the digest in the index. Reading is opt-in (SHOAL_NODE_FETCH_COMPILED_DIR).

Only plain files with safe relative names are unpacked. They never overwrite a file, and each is renamed into place
once it is whole. All calls block: run them in a thread.
"""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from functions.api.ids import DIGEST_PATTERN, Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.artifacts.locations import ArtifactLocation, compiled_prefix
from functions.artifacts.manifest import ManifestLimits
from functions.artifacts.publish import point, put_content
from functions.artifacts.s3 import S3Store

CACHE_FOLDER = "torch_compile_cache"
PACK_NAME = "compiled.tar"
MAX_COMPANIONS = 16  # per base; beyond that the oldest is dropped
MAX_FILES = 50_000
MAX_BYTES = 8 * 1024**3  # an 8B's graphs for one GPU are some hundred megabytes
LIMITS = ManifestLimits(max_files=1, max_file_bytes=MAX_BYTES * 2, max_total_bytes=MAX_BYTES * 2)
_INDEX_MAX_BYTES = 256 * 1024
_MAX_DEPTH = 16
_MAX_NAME_CHARS = 200
_PASSED_OVER = (".lock", ".tmp")  # unfinished files of another engine process

_Word = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._+-]*\Z")]


class Companion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Compile cache of one engine version on one kind of accelerator."""

    digest: Annotated[str, msgspec.Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
    engine: _Word  # vLLM's version
    accelerator: _Word  # the operator's name for the kind, such as h100
    keys: Annotated[tuple[_Word, ...], msgspec.Meta(max_length=256)]  # the engine's own hashes, which name its entries
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]

    def fits(self, wanted: str) -> bool:
        """Return True if `wanted` is this companion's `ENGINE/ACCELERATOR`, its engine alone, its accelerator alone, or
        empty."""
        return set(filter(None, wanted.split("/"))) <= {self.engine, self.accelerator}


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    companions: Annotated[tuple[Companion, ...], msgspec.Meta(max_length=MAX_COMPANIONS)] = ()


def pack(cache_root: Path, folder: Path) -> tuple[str, ...]:
    """Pack an engine's compile cache into PACK_NAME in `folder` and return its keys. Equal files give equal bytes.
    Raise ArtifactMissing if nothing was compiled, ArtifactRefused if the cache is too large or not only plain files."""
    compiled = cache_root / CACHE_FOLDER
    paths = sorted(_plain_files(compiled))
    if not paths:
        raise ArtifactMissing(f"{compiled} holds nothing: was the engine started with --enforce-eager?")
    if len(paths) > MAX_FILES or sum((compiled / path).stat().st_size for path in paths) > MAX_BYTES:
        raise ArtifactRefused(f"{compiled} is over {MAX_FILES} files or {MAX_BYTES} bytes: start with an empty one")
    try:
        with tarfile.open(folder / PACK_NAME, "w", format=tarfile.PAX_FORMAT) as packed:
            for path in paths:
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = (compiled / path).stat().st_size, 0o644
                with directories.open_plain(compiled / path) as file:
                    packed.addfile(entry, file)
    except OSError as error:
        raise CacheFailed(f"{compiled} cannot be packed: {error.strerror or error}") from error
    return _keys(paths)


def publish(store: S3Store, weights: Digest, folder: Path, *, engine: str, accelerator: str) -> Companion:
    """Put the pack in `folder` into the store and append it to the index of the weights' compile caches, which drops
    its oldest beyond MAX_COMPANIONS. Raise ArtifactRefused for an invalid name of engine or accelerator."""
    for word in (engine, accelerator):
        _checked_word(word)
    manifest = directories.build_manifest(folder, LIMITS)
    document = manifests.encode(manifest)
    digest = manifests.digest_of(document)
    prefix = compiled_prefix(manifests.hex_of(weights))
    put_content(store, folder, manifest)
    point(store, ArtifactLocation(store.bucket, f"{prefix}/{manifests.hex_of(digest)}"), document)
    put_content(store, folder, manifest, reread=False)
    keys = _keys(_names_in(folder / PACK_NAME))
    made = Companion(digest, engine, accelerator, keys, manifest.total_bytes)
    former = tuple(one for one in read_index(store, weights).companions if one.digest != digest)
    kept = Index((*former, made)[-MAX_COMPANIONS:])
    store.put(f"{prefix}/index.json", msgspec.json.encode(kept))
    return made


def read_index(store: S3Store, weights: Digest) -> Index:
    """Return the index of the weights' compile caches, which is empty if nothing was put. Raise ArtifactCorrupt if it
    is invalid."""
    try:
        document = store.read_small(f"{compiled_prefix(manifests.hex_of(weights))}/index.json", _INDEX_MAX_BYTES)
        return msgspec.json.decode(document, type=Index)
    except ArtifactMissing:
        return Index()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactCorrupt(f"the index of compile caches for {weights} is invalid: {error}") from error


def lay_out(pack_file: Path, cache_root: Path) -> int:
    """Unpack into an engine's cache root, skipping files that exist. Return the number of files written. Raise
    ArtifactRefused, and write nothing, if the pack holds an unsafe name, anything but plain files, or too much."""
    compiled = cache_root / CACHE_FOLDER
    try:
        with tarfile.open(pack_file, "r:") as packed:
            members = list(_checked(packed))
            return sum(_write(packed, member, compiled / member.name) for member in members)
    except tarfile.TarError as error:
        raise ArtifactRefused(f"{PACK_NAME} is not an archive: {error}") from error
    except OSError as error:
        raise CacheFailed(f"{compiled} cannot be written: {error.strerror or error}") from error


def _checked_word(word: str) -> None:
    try:
        msgspec.convert(word, type=_Word)
    except msgspec.ValidationError as error:
        raise ArtifactRefused(f"{word[:100]!r} is not a name of an engine or accelerator: {error}") from error


def _checked(packed: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    files = total_bytes = 0
    for member in packed:
        files, total_bytes = files + 1, total_bytes + member.size
        if files > MAX_FILES or total_bytes > MAX_BYTES:
            raise ArtifactRefused(f"{PACK_NAME} is over {MAX_FILES} files or {MAX_BYTES} bytes")
        if not member.isreg() or not _is_safe(member.name):
            raise ArtifactRefused(
                f"{PACK_NAME} holds {member.name[:200]!r}: only plain files with relative names are allowed"
            )
        yield member


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        not path.is_absolute()
        and str(path) == name
        and 0 < len(path.parts) <= _MAX_DEPTH
        and all(part not in ("..", ".") and len(part) <= _MAX_NAME_CHARS and part.isprintable() for part in path.parts)
    )


def _write(packed: tarfile.TarFile, member: tarfile.TarInfo, at: Path) -> bool:
    if at.exists():
        return False
    at.parent.mkdir(parents=True, exist_ok=True)
    content = packed.extractfile(member)
    assert content is not None
    temporary = at.with_name(f".{os.getpid()}.tmp")
    with content, temporary.open("wb") as file:
        while block := content.read(1024 * 1024):
            file.write(block)
    temporary.chmod(0o755)  # shared libraries may need the execute bit
    temporary.rename(at)
    return True


def _names_in(pack_file: Path) -> list[str]:
    with tarfile.open(pack_file, "r:") as packed:
        return packed.getnames()


def _plain_files(compiled: Path) -> Iterator[str]:
    """Yield the relative paths of the files to pack, without those that end in `_PASSED_OVER`; raise ArtifactRefused
    for a link, a special file or a name that could not be unpacked."""
    for folder, _, names in os.walk(compiled):
        for name in names:
            path = Path(folder, name)
            relative = path.relative_to(compiled).as_posix()
            if name.endswith(_PASSED_OVER):
                continue
            if path.is_symlink() or not path.is_file() or not _is_safe(relative):
                raise ArtifactRefused(
                    f"{relative[:200]!r} is not a plain file with a plain name: only those are packed"
                )
            yield relative


def _keys(paths: list[str]) -> tuple[str, ...]:
    """Return the names of the folders that the engine names by its hashes, sorted, at most 256: the first part of each
    path, or the second below `torch_aot_compile`."""
    found = set()
    for path in paths:
        parts = PurePosixPath(path).parts
        found.add(parts[1] if parts[0] == "torch_aot_compile" and len(parts) > 2 else parts[0])
    return tuple(sorted(found)[:256])
