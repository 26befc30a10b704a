"""A directory on disk as an artifact: build its manifest, or verify it against a digest.

Only plain files are allowed. Symlinks, sockets and devices are rejected, since the hashed content must be in the
directory itself. Files are opened with O_NOFOLLOW, so a link that is swapped in after the check is rejected too. All
calls block on the disk; run them in a thread.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.artifacts.manifest import (
    MANIFEST_MAX_BYTES,
    MANIFEST_NAME,
    MODEL_LIMITS,
    FileEntry,
    Manifest,
    ManifestLimits,
)

READ_BYTES = 1024 * 1024
# Errors that do not concern the file: the process or machine is out of resources, or another user owns the file.
_NOT_THE_FILES_FAULT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.ESTALE)


def build_manifest(directory: Path, limits: ManifestLimits = MODEL_LIMITS) -> Manifest:
    """Hash every file below `directory`, except for an existing manifest, and return their manifest; nothing is
    written. Raise ArtifactRefused if a file or the whole cannot be an artifact within `limits`."""
    paths = []
    total_bytes = 0
    for path in plain_files(directory):
        if path == MANIFEST_NAME:
            continue
        manifests.check_path(path)
        paths.append(path)
        total_bytes += (directory / path).lstat().st_size
        if len(paths) > limits.max_files:
            raise ArtifactRefused(f"{directory} has more than {limits.max_files} files")
    chunk_bytes = manifests.chunk_bytes_for(total_bytes)
    files = tuple(_entry(directory, path, limits, chunk_bytes) for path in sorted(paths))
    manifest = Manifest(chunk_bytes=chunk_bytes, files=files)
    manifests.check(manifest, limits)
    return manifest


def write_manifest(directory: Path, limits: ManifestLimits = MODEL_LIMITS) -> Digest:
    """Write the directory's manifest next to its files, atomically, and return its digest."""
    document = manifests.encode(build_manifest(directory, limits))
    temporary = directory / f".{MANIFEST_NAME}.{os.getpid()}"
    write_durably(temporary, document)
    temporary.rename(directory / MANIFEST_NAME)
    sync_directory(directory)
    return manifests.digest_of(document)


def read_manifest(directory: Path, limits: ManifestLimits = MODEL_LIMITS) -> tuple[Digest, Manifest]:
    """Return the digest and the content of the directory's manifest, without checking the files."""
    document = _read_manifest_bytes(directory)
    return manifests.digest_of(document), manifests.decode(document, limits)


def verify_directory(directory: Path, digest: Digest, limits: ManifestLimits = MODEL_LIMITS) -> Manifest:
    """Return the directory's manifest after hashing every file. Raise ArtifactCorrupt, naming the file, unless the
    directory is exactly what `digest` names, and ArtifactMissing if it has no manifest."""
    manifest = manifests.decode_verified(_read_manifest_bytes(directory), digest, limits)
    expected = {entry.path for entry in manifest.files}
    try:
        present = {path for path in plain_files(directory) if path != MANIFEST_NAME}
    except ArtifactRefused as error:
        raise ArtifactCorrupt(str(error)) from error
    for path in sorted(present ^ expected):
        raise ArtifactCorrupt(f"{path} is {'extra' if path in present else 'missing'} in {digest}")
    for entry in manifest.files:
        try:
            verify_file(directory, entry)
        except ArtifactCorrupt as error:
            raise ArtifactCorrupt(f"{digest}: {error}") from error
    return manifest


def verify_file(directory: Path, entry: FileEntry) -> None:
    """Raise ArtifactCorrupt unless the file below `directory` matches its entry in the manifest. Raise CacheFailed if
    the file cannot be read now, because it may be sound."""
    try:
        with open_plain(directory / entry.path) as file:
            size_bytes = os.fstat(file.fileno()).st_size  # avoids reading a file that grew
            sha256 = sha256_of(file) if size_bytes == entry.size_bytes else "another size"
    except (ArtifactMissing, ArtifactRefused) as error:
        raise ArtifactCorrupt(f"{entry.path}: {error}") from error
    except OSError as error:
        raise CacheFailed(f"{entry.path} cannot be read: {error.strerror}") from error
    if sha256 != entry.sha256:
        raise ArtifactCorrupt(f"{entry.path} has other content: {size_bytes} bytes, {sha256}")


def open_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading without following a link. Raise ArtifactMissing if it does not exist, CacheFailed
    if the cause is not the file itself (see `_NOT_THE_FILES_FAULT`), ArtifactRefused for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ArtifactMissing(f"{path.name} is not there") from error
    except OSError as error:  # ELOOP: a link; ENXIO: a socket; EIO: the disk
        if error.errno in _NOT_THE_FILES_FAULT:
            raise CacheFailed(f"{path.name} cannot be opened: {error.strerror}") from error
        raise ArtifactRefused(f"{path.name} cannot be opened as a plain file: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactRefused(f"{path.name} is not a plain file")
    return os.fdopen(descriptor, "rb")


def sha256_of(file: BinaryIO) -> str:
    """Return the hex sha256 of an open file from its current position to the end."""
    sha256 = hashlib.sha256()
    while block := file.read(READ_BYTES):
        sha256.update(block)
    return sha256.hexdigest()


def write_durably(path: Path, content: bytes) -> None:
    """Delete an existing file at `path`, then write and fsync a new one."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make renames and new names in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain_files(directory: Path) -> Iterator[str]:
    """Yield the relative paths of all files below; raise ArtifactRefused for a special file or too deep a path."""
    return _plain_files(directory, directory)


def _plain_files(root: Path, directory: Path, depth: int = 1) -> Iterator[str]:
    if depth > manifests.PATH_MAX_DEPTH:
        raise ArtifactRefused(f"{directory.relative_to(root)} lies more than {manifests.PATH_MAX_DEPTH - 1} deep")
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(directory, error) from error
    for entry in entries:
        path = directory / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _plain_files(root, path, depth + 1)
        elif entry.is_file(follow_symlinks=False):
            yield path.relative_to(root).as_posix()
        else:
            raise ArtifactRefused(f"{path.relative_to(root)} is a link or a special file; only plain files are allowed")


def _unreadable(directory: Path, error: OSError) -> ArtifactError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ArtifactMissing(f"there is no directory {directory.name}")
    return CacheFailed(f"{directory.name} cannot be read: {error.strerror}")


def _read_manifest_bytes(directory: Path) -> bytes:
    with open_plain(directory / MANIFEST_NAME) as file:
        return file.read(MANIFEST_MAX_BYTES + 1)


def _entry(directory: Path, path: str, limits: ManifestLimits, chunk_bytes: int) -> FileEntry:
    """Hash the file and its chunks in one pass and return its manifest entry; raise ArtifactRefused if it is over the
    limit. A file smaller than one chunk has the same hash for both."""
    whole = hashlib.sha256()
    chunks: list[str] = []
    size_bytes = 0
    with open_plain(directory / path) as file:
        while chunk := file.read(chunk_bytes):
            size_bytes += len(chunk)
            if size_bytes > limits.max_file_bytes:
                raise ArtifactRefused(f"{path} is over the limit of {limits.max_file_bytes} bytes")
            whole.update(chunk)
            single = size_bytes == len(chunk) < chunk_bytes
            chunks.append(whole.hexdigest() if single else hashlib.sha256(chunk).hexdigest())
    return FileEntry(path=path, size_bytes=size_bytes, sha256=whole.hexdigest(), chunks=tuple(chunks))
