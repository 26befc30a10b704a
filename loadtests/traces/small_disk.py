"""A small tmpfs mounted on a folder, which can be filled. Mounting needs root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BLOCK = bytes(64 * 1024)


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Write until the disk is full."""
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(_BLOCK)

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        raise SystemExit("cases with a full disk mount a small tmpfs, which needs root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
