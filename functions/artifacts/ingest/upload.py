"""Files that stream in: names, sizes, number and disk space are checked before or while they are written.

with ingest.upload() as upload:
    with upload.file("adapter_config.json") as writer:
        writer.write(block)
    ingested = upload.finish(expect)
"""

import errno
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from functions.artifacts.errors import ArtifactRefused, CacheFailed
from functions.artifacts.ingest.policy import Expectation, Ingested, IngestPolicy, check_name

_SPACE_CHECKED_EVERY_BYTES = 16 * 1024**2


class FileWriter:
    """One file of an upload, whole once it is closed; one left by an exception is not, and fails `finish`."""

    def __init__(self, upload: "Upload", path: str, file: BinaryIO) -> None:
        self._upload, self._path, self._file = upload, path, file
        self._size_bytes = 0

    def write(self, block: bytes) -> None:
        """Append a block; ArtifactRefused as soon as the file or the whole is over its limit."""
        self._size_bytes += len(block)
        if self._size_bytes > self._upload.policy.limits.max_file_bytes:
            raise ArtifactRefused(
                f"{self._path} is over the limit of {self._upload.policy.limits.max_file_bytes} bytes"
            )
        self._upload.count(len(block))
        try:
            self._file.write(block)
        except OSError as error:
            raise _disk(error) from error

    def close(self) -> None:
        if not self._file.closed:
            try:
                self._file.close()
            except OSError as error:
                raise _disk(error) from error
            self._upload.closed(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._file.close()


class Upload:
    """The files of one adapter on their way in; not for two threads at once."""

    def __init__(self, directory: Path, policy: IngestPolicy, publish: Callable[[Path, Expectation], Ingested]) -> None:
        self.policy = policy
        self._directory = directory
        self._publish = publish
        self._names: set[str] = set()
        self._open: dict[str, BinaryIO] = {}
        self._total_bytes = 0
        self._until_space_check_bytes = 0

    def file(self, path: str, announced_bytes: int | None = None) -> FileWriter:
        """Begin the file `path`; ArtifactRefused for a name, a number or an announced size that cannot be."""
        check_name(path)
        limits = self.policy.limits
        if path.lower() in self._names:
            raise ArtifactRefused(f"{path} is named twice (upper and lower case count as the same)")
        if len(self._names) >= limits.max_files:
            raise ArtifactRefused(f"more than {limits.max_files} files; an adapter needs two")
        if announced_bytes is not None and announced_bytes > limits.max_file_bytes:
            raise ArtifactRefused(
                f"{path} is announced with {announced_bytes} bytes, over the limit of {limits.max_file_bytes}"
            )
        self.check_space(announced_bytes or 0)
        target = self._directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = target.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            raise ArtifactRefused(f"{path} is named both as a file and as a directory") from error
        except OSError as error:
            raise _disk(error) from error
        self._names.add(path.lower())
        self._open[path] = file
        return FileWriter(self, path, file)

    def finish(self, expect: Expectation) -> Ingested:
        """Check what was received and publish it; ArtifactRefused with the reason, nothing stored then."""
        if self._open:
            raise ArtifactRefused(f"{min(self._open)} did not arrive whole")
        if not self._names:
            raise ArtifactRefused("no files arrived: an adapter is adapter_config.json and adapter_model.safetensors")
        return self._publish(self._directory, expect)

    def count(self, block_bytes: int) -> None:
        self._total_bytes += block_bytes
        if self._total_bytes > self.policy.limits.max_total_bytes:
            raise ArtifactRefused(f"over the limit of {self.policy.limits.max_total_bytes} bytes in all")
        self._until_space_check_bytes -= block_bytes
        if self._until_space_check_bytes <= 0:
            self.check_space(block_bytes)

    def closed(self, path: str) -> None:
        self._open.pop(path, None)

    def abandon(self) -> None:
        """Let go of files that nobody closed."""
        for file in self._open.values():
            with suppress(OSError):  # a full disk once more, over bytes that nobody wants
                file.close()

    def check_space(self, wanted_bytes: int) -> None:
        """Raise CacheFailed unless the disk has room for that much more."""
        free_bytes = shutil.disk_usage(self._directory).free
        if free_bytes - wanted_bytes < self.policy.reserve_free_bytes:
            raise CacheFailed(
                f"no room to receive this: {free_bytes // 1024**2} MiB free, "
                f"{self.policy.reserve_free_bytes // 1024**2} MiB are kept free"
            )
        self._until_space_check_bytes = _SPACE_CHECKED_EVERY_BYTES


def _disk(error: OSError) -> CacheFailed:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return CacheFailed("the disk is full" if full else f"the staging disk failed: {error.strerror}")
