"""Files of an upload: names, sizes, number and disk space are checked before or while they are written.

`StagingBudget` also limits the bytes that all uploads of a process hold on the disk. A volume's own limit, such as an
emptyDir's, does not show in the free space of the disk, and a pod that exceeds it is evicted with all its data.

    with ingest.upload() as upload:
        with upload.file("adapter_config.json") as writer:
            writer.write(block)
        ingested = upload.finish(expect)
"""

import errno
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from functions.artifacts.errors import ArtifactRefused, CacheFailed
from functions.artifacts.ingest.policy import Expectation, Ingested, IngestPolicy, check_name

_SPACE_CHECKED_EVERY_BYTES = 16 * 1024**2


class StagingBudget:
    """Limit on the bytes that all ingests may hold in staging together; usable from any number of threads.

    A tenant may hold at most as much as stays free, so that there is room for the next: of 3 GiB the first tenant
    gets up to 1.5, a second one then 0.75 (test_one_tenant_leaves_room_for_the_next).
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        """`max_bytes`: None means that only the disk limits them."""
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    @contextmanager
    def reservation(self, tenant: str | None) -> Iterator["StagingReservation"]:
        """Yield a reservation for one ingest; it is released when the block ends."""
        made = StagingReservation(self, tenant or "")
        try:
            yield made
        finally:
            with self._lock:
                self._held[made.tenant] -= made.held_bytes
                if not self._held[made.tenant]:
                    del self._held[made.tenant]

    @property
    def held_bytes(self) -> int:
        with self._lock:
            return self._held.total()

    def reserve(self, tenant: str, size_bytes: int) -> None:
        """Reserve bytes for a tenant; raise CacheFailed if the tenant would then hold more bytes than stay free.
        Without a limit, everything is granted."""
        with self._lock:
            left_bytes = self._max_bytes - self._held.total() - size_bytes if self._max_bytes is not None else None
            if left_bytes is not None and self._held[tenant] + size_bytes > left_bytes:
                raise CacheFailed("no room to receive this: other uploads use the space; send it again in a minute")
            self._held[tenant] += size_bytes


class StagingReservation:
    """Bytes that one ingest may hold on the disk so far."""

    def __init__(self, budget: StagingBudget, tenant: str) -> None:
        self._budget = budget
        self.tenant = tenant
        self.held_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        """Grow the reservation to `size_bytes`, if it is smaller; raise CacheFailed if there is no room."""
        more_bytes = size_bytes - self.held_bytes
        if more_bytes > 0:
            self._budget.reserve(self.tenant, more_bytes)
            self.held_bytes = size_bytes


class FileWriter:
    """One file of an upload. It is complete once closed; if an exception leaves it open, `finish` fails."""

    def __init__(self, upload: "Upload", path: str, file: BinaryIO) -> None:
        self._upload, self._path, self._file = upload, path, file
        self._size_bytes = 0

    def write(self, block: bytes) -> None:
        """Append a block; raise ArtifactRefused if the file or the upload exceeds its limit, CacheFailed if the disk
        fails."""
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
    """Files of one adapter while they are received. Only one thread at a time may use it."""

    def __init__(
        self,
        directory: Path,
        policy: IngestPolicy,
        publish: Callable[[Path, Expectation], Ingested],
        room: StagingReservation,
    ) -> None:
        self.policy = policy
        self.room = room
        self._directory = directory
        self._publish = publish
        self._names: set[str] = set()
        self._open: dict[str, BinaryIO] = {}
        self._total_bytes = 0
        self._until_space_check_bytes = 0

    def file(self, path: str, announced_bytes: int | None = None) -> FileWriter:
        """Open a new file `path` for writing. Raise ArtifactRefused for a bad or repeated name, too many files or
        excess size, CacheFailed if the disk has no room."""
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
        """Check the received files and publish them; raise ArtifactRefused, with nothing stored, if there are none, one
        is incomplete or a check fails."""
        if self._open:
            raise ArtifactRefused(f"{min(self._open)} did not arrive completely")
        if not self._names:
            raise ArtifactRefused("no files arrived: an adapter is adapter_config.json and adapter_model.safetensors")
        return self._publish(self._directory, expect)

    def count(self, block_bytes: int) -> None:
        self._total_bytes += block_bytes
        if self._total_bytes > self.policy.limits.max_total_bytes:
            raise ArtifactRefused(f"over the limit of {self.policy.limits.max_total_bytes} bytes in all")
        if self._total_bytes > self.room.held_bytes:
            self.room.grow_to(self._total_bytes + _SPACE_CHECKED_EVERY_BYTES)
        self._until_space_check_bytes -= block_bytes
        if self._until_space_check_bytes <= 0:
            self.check_space(block_bytes)

    def closed(self, path: str) -> None:
        self._open.pop(path, None)

    def abandon(self) -> None:
        """Close files that were left open."""
        for file in self._open.values():
            with suppress(OSError):  # a full disk may fail again
                file.close()

    def check_space(self, wanted_bytes: int) -> None:
        """Raise CacheFailed unless the disk has room for `wanted_bytes` more and for what the policy keeps free."""
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
