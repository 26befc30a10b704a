"""The node's cache of artifacts by digest: `<root>/sha256/<hex>/`, shared by every agent of the node.

A directory under its digest is whole and verified, because it only ever gets there by one rename. What is being
fetched lies beside it as `.fetch-*`, locked (flock) by the process that writes it; a lock that nobody holds marks
garbage, whoever was killed and in whichever container, so that cleaning never takes a live fetch away. All calls
block on the disk.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactMissing, CacheFailed
from functions.artifacts.manifest import MODEL_LIMITS, ManifestLimits

_FETCH_PREFIX = ".fetch-"
_LOCK_TRIES = 5
_READABLE = 0o755


@dataclass(frozen=True, slots=True)
class ArtifactCache:
    root: Path

    @property
    def _digests(self) -> Path:
        return self.root / "sha256"

    def path_of(self, digest: Digest) -> Path:
        """Where the artifact lies, or would lie."""
        return self._digests / manifests.hex_of(digest)

    def verified(self, digest: Digest, limits: ManifestLimits = MODEL_LIMITS) -> Path | None:
        """The artifact's directory after hashing every byte of it; None where it is not cached.

        ArtifactCorrupt where the disk no longer holds what was written: `discard` it and fetch again.
        """
        path = self.path_of(digest)
        try:
            directories.verify_directory(path, digest, limits)
        except ArtifactMissing:
            if path.exists():  # a directory without its manifest cannot be anything that we renamed there
                self.discard(digest)
            return None
        return path

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A fresh locked directory to fetch into; gone at the end, unless `install` moved it."""
        try:
            path, lock = self._locked_directory()
        except OSError as error:
            raise CacheFailed(f"the cache {self.root} cannot be written: {error.strerror}") from error
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)

    def install(self, staged: Path, digest: Digest) -> Path:
        """Rename a whole, verified directory to its digest; one that got there first is as good."""
        target = self.path_of(digest)
        try:
            staged.chmod(_READABLE)  # mkdtemp's 0700 would keep an engine under another user out
            directories.sync_directory(staged)
            staged.rename(target)
            directories.sync_directory(self._digests)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise CacheFailed(f"{digest} cannot be put in place: {error.strerror}") from error
        return target

    def discard(self, digest: Digest) -> None:
        """Take a bad directory away at once; its bytes go with the staging area."""
        with self.staging() as aside, suppress(FileNotFoundError):
            self.path_of(digest).rename(aside / "discarded")

    def clean_garbage(self) -> int:
        """Remove what killed fetches left; how many there were."""
        removed = 0
        for path in self._digests.glob(_FETCH_PREFIX + "*"):
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                    removed += 1
                finally:
                    os.close(descriptor)
        return removed

    def _locked_directory(self) -> tuple[Path, int]:
        """A new directory and the descriptor that holds its lock; a cleaner may win the moment between the two."""
        self._digests.mkdir(parents=True, exist_ok=True)
        for _ in range(_LOCK_TRIES):
            path = Path(tempfile.mkdtemp(prefix=_FETCH_PREFIX, dir=self._digests))
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if path.exists():
                    return path, descriptor
                os.close(descriptor)
        raise CacheFailed(f"{self.root}: another process removes what is being fetched")
