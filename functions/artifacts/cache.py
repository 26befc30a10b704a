"""The node's cache of artifacts by digest, shared by all agents of the node and limited in bytes.

    <root>/sha256/<hex>/     whole and verified: a directory only ever gets there by one rename
    <root>/partial/<hex>/    an artifact being assembled (`assembly`); it survives a kill, so a fetch can resume
    <root>/locks/<hex>       held (flock) by the one process of the node that fetches the digest
    <root>/trash/…           being deleted: renamed first, so that no half directory is ever visible

Processes coordinate only by locks, which the kernel releases when their holder dies. `use` holds a shared lock on an
artifact's directory while an engine may read it. `evict` needs an exclusive lock, so no process evicts an artifact
that another one uses. The time of last use is the directory's modification time: `use` writes it every time, `touch`
at most once a minute. All calls block on the disk.
"""

import errno
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused, CacheFailed, FetchUnderway
from functions.artifacts.manifest import MANIFEST_NAME, MODEL_LIMITS, ManifestLimits
from functions.artifacts.node_locks import try_lock_directory, try_lock_file

TOUCH_EVERY_S = 60.0
PARTIAL_KEPT_S = 86_400.0  # a killed fetch that is not resumed within a day is garbage
CLOCK_STEP_S = 300.0  # a time of use so far in the future was written before the clock was set back
FLIGHT_TIMEOUT_S = 300.0
_POLL_S = 0.05
_OLD_FETCH_PREFIX = ".fetch-"  # name prefix of unfinished fetches in builds without chunks
_READABLE = 0o755


@dataclass(frozen=True, slots=True)
class CachedArtifact:
    digest: Digest
    size_bytes: int
    last_used_unix_s: float


@dataclass(frozen=True, slots=True)
class ArtifactCache:
    root: Path

    def path_of(self, digest: Digest) -> Path:
        """Return the directory of the artifact, which may not exist."""
        return self._digests / manifests.hex_of(digest)

    def partial_path(self, digest: Digest) -> Path:
        """Return the directory in which the artifact is assembled."""
        return self.root / "partial" / manifests.hex_of(digest)

    def held(self, digest: Digest) -> bool:
        """Return True if the artifact is cached, unverified: only its manifest file is looked for."""
        return (self.path_of(digest) / MANIFEST_NAME).is_file()

    def verified(self, digest: Digest, limits: ManifestLimits = MODEL_LIMITS) -> Path | None:
        """Return the artifact's directory after hashing every byte, or None if it is not cached. Raise ArtifactCorrupt
        if the disk no longer holds what was written: fetch again, and `install` replaces it."""
        path = self.path_of(digest)
        try:
            directories.verify_directory(path, digest, limits)
        except ArtifactMissing:
            if path.exists():  # a directory without its manifest was not installed by us
                self.discard(digest)
            return None
        return path

    def digests(self) -> list[CachedArtifact]:
        """Return the cached artifacts, least recently used first."""
        found = [artifact for path in _entries(self._digests) if (artifact := _cached(path)) is not None]
        return sorted(found, key=lambda artifact: (artifact.last_used_unix_s, artifact.digest))

    def touch(self, digest: Digest, now_unix_s: float | None = None) -> None:
        """Record that the artifact is in use now, unless a use was recorded less than a minute ago."""
        self._note_use(digest, time.time() if now_unix_s is None else now_unix_s, TOUCH_EVERY_S)

    def _note_use(self, digest: Digest, now_unix_s: float, every_s: float) -> None:
        path = self.path_of(digest)
        with suppress(OSError):  # deleted meanwhile, or owned by another user
            if not 0 <= now_unix_s - path.stat().st_mtime < every_s:  # also replaces a time in the future
                os.utime(path, (now_unix_s, now_unix_s))

    @contextmanager
    def use(self, digest: Digest) -> Iterator[Path]:
        """Yield the artifact's directory and protect it from eviction; raise ArtifactMissing if it is not cached."""
        path = self.path_of(digest)
        while True:  # an eviction holds its lock only for a moment, and then the directory is gone
            with try_lock_directory(path, shared=True) as in_use:
                if in_use:
                    self._note_use(digest, time.time(), 0.0)
                    yield path
                    return
            if not path.exists():
                raise ArtifactMissing(f"{digest} is not in the cache: fetch it")
            time.sleep(_POLL_S)

    def evict(
        self, max_bytes: int, pinned: Collection[Digest] = (), *, used_before_unix_s: float = math.inf
    ) -> list[Digest]:
        """Remove the least recently used artifacts until at most `max_bytes` are left. Return the removed ones.

        Artifacts are spared if they are pinned, in use, or were used at `used_before_unix_s` or later, even during
        this call. A time of use more than CLOCK_STEP_S later is from before the clock was set back, and does not
        protect. Killed fetches count too, and are removed first. Only one process evicts at a time, since each would
        free the whole excess; a second one returns without evicting.
        """
        with self._try_lock("evict") as alone:
            return self._evict(max_bytes, pinned, used_before_unix_s) if alone else []

    def make_room(self, digest: Digest, needed_bytes: int, max_bytes: int) -> list[Digest]:
        """Evict until `max_bytes` can hold the cached artifacts and the whole of `digest`, which is being fetched and
        is spared. Return the evicted ones. Artifacts in use stay, so there may be less room."""
        has_bytes = _allocated_bytes(self.partial_path(digest))
        return self.evict(max(0, max_bytes - needed_bytes + has_bytes), pinned=(digest,))

    @contextmanager
    def single_flight(
        self,
        digest: Digest,
        *,
        timeout_s: float = FLIGHT_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[None]:
        """Be the only process of this node that fetches the digest. Check `held` first inside the block. Raise
        FetchUnderway if another process has not finished within `timeout_s`."""
        give_up_at_s = clock() + timeout_s
        while True:
            with self._try_lock(manifests.hex_of(digest)) as alone:
                if alone:
                    yield
                    return
            if clock() >= give_up_at_s:
                raise FetchUnderway(f"another process has been fetching {digest} for {timeout_s:.0f} s; try again")
            sleep(_POLL_S)

    def install(self, staged: Path, digest: Digest) -> Path:
        """Rename a whole, verified directory to its digest, replacing what was there, and return the new path. An
        artifact is only assembled where there is none or a corrupt one. If another process installs it in between, that
        one is used."""
        target = self.path_of(digest)
        former: Path | None = None
        try:
            self._digests.mkdir(parents=True, exist_ok=True)
            staged.chmod(_READABLE)  # an engine that runs as another user must be able to read it
            os.utime(staged)
            directories.sync_directory(staged)
            if target.exists():
                former = self._moved_aside(target)
            staged.rename(target)
            directories.sync_directory(self._digests)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise CacheFailed(f"{digest} cannot be put in place: {error.strerror}") from error
        finally:
            if former is not None:
                shutil.rmtree(former, ignore_errors=True)
        return target

    def discard(self, digest: Digest) -> None:
        """Remove the artifact's directory, even if it is in use."""
        self._throw_away(self.path_of(digest))

    def clean_garbage(self, now_unix_s: float | None = None) -> int:
        """Remove leftovers of killed processes that no fetch will resume. Return how many were removed."""
        now_unix_s = time.time() if now_unix_s is None else now_unix_s
        removed = 0
        for path in _entries(self.root / "trash"):
            removed += _removed(path)
        for path in _entries(self.root / "partial"):
            if self._is_garbage(path, now_unix_s):
                removed += self._remove_partial(path)
        for path in _entries(self._digests):
            if path.name.startswith(_OLD_FETCH_PREFIX):
                removed += _removed(path)
        for path in _entries(self.root / "locks"):
            with self._try_lock(path.name):
                pass  # the lock file of a killed holder is removed by its next holder
        return removed

    @property
    def _digests(self) -> Path:
        return self.root / "sha256"

    @contextmanager
    def _try_lock(self, name: str) -> Iterator[bool]:
        with ExitStack() as stack:
            try:
                folder = self.root / "locks"
                folder.mkdir(parents=True, exist_ok=True)
                alone = stack.enter_context(try_lock_file(folder / name))
            except OSError as error:
                raise CacheFailed(f"the cache {self.root} cannot be written: {error.strerror}") from error
            yield alone

    def _is_garbage(self, partial: Path, now_unix_s: float) -> bool:
        try:
            changed_unix_s = max((partial / name).stat().st_mtime for name in (".", "progress"))
        except FileNotFoundError:
            changed_unix_s = 0.0  # not laid out, so there is nothing to resume
        return now_unix_s - changed_unix_s > PARTIAL_KEPT_S or (self._digests / partial.name).exists()

    def _remove_partial(self, path: Path) -> bool:
        """Remove an unfinished fetch and return True. Return False if a process still fetches into it, or if it could
        not be removed."""
        with self._try_lock(path.name) as alone:
            return alone and _removed(path)

    def _evict(self, max_bytes: int, pinned: Collection[Digest], used_before_unix_s: float) -> list[Digest]:
        artifacts = self.digests()
        partials = [(path, _allocated_bytes(path)) for path in _entries(self.root / "partial")]
        excess_bytes = sum(artifact.size_bytes for artifact in artifacts) + sum(size for _, size in partials)
        excess_bytes -= max_bytes
        for path, size_bytes in partials:
            if excess_bytes > 0 and f"sha256:{path.name}" not in pinned and self._remove_partial(path):
                excess_bytes -= size_bytes
        evicted = []
        for artifact in artifacts:
            if excess_bytes <= 0 or artifact.digest in pinned:
                continue
            if self._evict_one(artifact.digest, used_before_unix_s):
                excess_bytes -= artifact.size_bytes
                evicted.append(artifact.digest)
        return evicted

    def _evict_one(self, digest: Digest, used_before_unix_s: float) -> bool:
        """Evict one artifact unless it is in use or was used at `used_before_unix_s` or later; return True if it was
        evicted. The time of use is read under the lock, so a use since the listing counts."""
        path = self.path_of(digest)
        with try_lock_directory(path) as nobody_uses_it:
            used_since_s = path.stat().st_mtime - used_before_unix_s
            if not nobody_uses_it or 0 <= used_since_s < CLOCK_STEP_S:
                return False
            self._throw_away(path)
            return True

    def _throw_away(self, path: Path) -> None:
        """Move the directory to the trash by one rename, then delete it. `clean_garbage` removes leftovers of a
        kill."""
        shutil.rmtree(self._moved_aside(path), ignore_errors=True)

    def _moved_aside(self, path: Path) -> Path:
        """Move the directory into a new folder in the trash and return that folder, which is empty if there was no
        directory. Raise CacheFailed."""
        trash = self.root / "trash"
        try:
            trash.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(dir=trash))
            with suppress(FileNotFoundError):
                path.rename(aside / path.name)
        except OSError as error:
            raise CacheFailed(f"{path.name} cannot be removed from the cache: {error.strerror}") from error
        return aside


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CacheFailed(f"{directory.name} of the cache cannot be listed: {error.strerror}") from error


def _cached(path: Path) -> CachedArtifact | None:
    """Return the artifact in one directory, or None if the name is not a digest or the directory vanished."""
    with suppress(ArtifactRefused, FileNotFoundError):
        digest = manifests.check_digest(f"sha256:{path.name}")
        return CachedArtifact(digest, _allocated_bytes(path), path.stat().st_mtime)
    return None


def _allocated_bytes(directory: Path) -> int:
    """Return the bytes that the files below occupy on the disk; holes and files that vanish do not count."""
    total_bytes = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total_bytes += Path(folder, name).lstat().st_blocks * 512
    return total_bytes


def _removed(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
