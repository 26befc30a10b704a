"""Sources of base weights: a folder or a prefix of any S3 bucket, listed and read in ranges.

`files` lists the source and `read` returns any range of a file, so no file is read whole. The `tag` of a file changes
with its content, if its file system or store notices the change. An interrupted push uses the tag to skip files that
it has hashed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.base_facts import CONFIG_NAME
from functions.artifacts.base_folder import LEFTOVERS, check_leftovers
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused, CacheFailed
from functions.artifacts.manifest import MANIFEST_NAME, MODEL_LIMITS
from functions.artifacts.s3 import S3Store
from functions.artifacts.s3_large import read_range


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str  # relative, as in the manifest
    size_bytes: int
    tag: str


class WeightSource(Protocol):
    def files(self) -> tuple[SourceFile, ...]:
        """Return the model's files by path; raise ArtifactRefused if one cannot be part of a model."""

    def read(self, path: str, start: int, length: int) -> bytes:
        """Return these bytes of the file, fewer only at its end. Many threads call this."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    directory: Path

    def files(self) -> tuple[SourceFile, ...]:
        check_leftovers(self.directory, clean=False)
        found = []
        for path in directories.plain_files(self.directory):
            status = (self.directory / path).lstat()
            found.append(SourceFile(path, status.st_size, f"{status.st_mtime_ns:x}-{status.st_ino:x}"))
        return _of_a_model(found, str(self.directory))

    def read(self, path: str, start: int, length: int) -> bytes:
        try:
            with directories.open_plain(self.directory / path) as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise CacheFailed(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A prefix of the bucket that `store` opens; `prefix` neither starts nor ends with a slash."""

    store: S3Store
    prefix: str

    def files(self) -> tuple[SourceFile, ...]:
        below = f"{self.prefix}/" if self.prefix else ""
        found = [
            SourceFile(stored.key.removeprefix(below), stored.size_bytes, f"{stored.modified_unix_s:.3f}")
            for stored in self.store.list(below)
            if not stored.key.endswith("/")  # placeholder that some tools write for a folder
        ]
        kept = [file for file in found if file.path.partition("/")[0] not in LEFTOVERS]
        return _of_a_model(kept, f"s3://{self.store.bucket}/{self.prefix}")

    def read(self, path: str, start: int, length: int) -> bytes:
        return read_range(self.store, f"{self.prefix}/{path}" if self.prefix else path, start, length)


def parse_source_uri(uri: str) -> tuple[str, str]:
    """Return bucket and prefix of `s3://bucket/prefix`; the prefix may be empty. Raise ArtifactRefused for any other
    form."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    if not uri.startswith("s3://") or not bucket:
        raise ArtifactRefused(f"{uri[:200]!r} is not of the form s3://bucket/prefix")
    return bucket, prefix.strip("/")


def read_whole(source: WeightSource, path: str, size_bytes: int) -> bytes:
    """Return the content of a small file; raise ArtifactError if its size is no longer `size_bytes`."""
    content = source.read(path, 0, size_bytes + 1)
    if len(content) != size_bytes:
        raise ArtifactRefused(f"{path} changed while it was being read; push again")
    return content


def _of_a_model(found: Iterable[SourceFile], where: str) -> tuple[SourceFile, ...]:
    files = tuple(sorted((file for file in found if file.path != MANIFEST_NAME), key=lambda file: file.path))
    names = {file.path for file in files}
    if not names:
        raise ArtifactMissing(f"{where} holds no files")
    if CONFIG_NAME not in names:
        raise ArtifactRefused(f"{where} has no {CONFIG_NAME}: name the folder of the model itself")
    if not any(name.endswith(".safetensors") for name in names):
        raise ArtifactRefused(f"{where} has no safetensors: engines here read no other weights")
    for file in files:
        try:
            manifests.check_path(file.path)
        except ArtifactError as error:
            raise ArtifactRefused(f"{where}: {error}") from error
        if file.size_bytes > MODEL_LIMITS.max_file_bytes:
            raise ArtifactRefused(f"{file.path} is over the limit of {MODEL_LIMITS.max_file_bytes} bytes")
    if len(files) > MODEL_LIMITS.max_files:
        raise ArtifactRefused(f"{where} has {len(files)} files; a model has up to {MODEL_LIMITS.max_files}")
    return files
