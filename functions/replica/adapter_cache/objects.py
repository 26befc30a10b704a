"""Objects on the cache's disk, by kind and sha256; bounded in bytes, least recently used evicted first.

    <root>/<kind>/<sha256>     complete: moved here by one rename, and hashed at every read
    <root>/coming/…            being written; leftovers of a killed process are deleted at the start

A corrupt object is deleted when it is read, and counts as missing. Calls block on the disk; threads may share an
instance.
"""

import hashlib
import logging
import os
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["chunks", "manifests"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_HEX_DIGITS = 64

_log = logging.getLogger(__name__)
Name = tuple[Kind, str]  # kind and sha256 in hex


@dataclass(slots=True)
class CachedObjects:
    root: Path
    max_bytes: int
    evicted_total: int = 0
    rotten_total: int = 0
    _sizes: OrderedDict[Name, int] = field(default_factory=OrderedDict)  # least recently used first
    _total_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> None:
        """Load the index of the objects that a former process left, delete its unfinished ones, and evict down to the
        limit. Raise OSError if the folder cannot be used."""
        for kind in (*KINDS, "coming"):
            (self.root / kind).mkdir(parents=True, exist_ok=True)
        for left in (self.root / "coming").iterdir():
            left.unlink()
        found = [(entry.stat(), kind, entry.name) for kind in KINDS for entry in os.scandir(self.root / kind)]
        with self._lock:
            for stat, kind, sha256 in sorted(found, key=lambda each: each[0].st_mtime):
                if len(sha256) == _HEX_DIGITS:
                    self._note(kind, sha256, stat.st_size)
        self._evict()

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    def __len__(self) -> int:
        return len(self._sizes)

    def read(self, kind: Kind, sha256: str) -> bytes | None:
        """Return the object after verifying its sha256, or None if it is missing, unreadable or corrupt; it is then
        forgotten. A read counts as a use."""
        with self._lock:
            if (kind, sha256) not in self._sizes:
                return None
            self._sizes.move_to_end((kind, sha256))
        path = self.root / kind / sha256
        try:
            content = path.read_bytes()
            os.utime(path)  # so that the order survives a restart
        except OSError as error:  # evicted meanwhile, or the disk fails
            _log.info("%s %s cannot be read: %s", kind, sha256[:12], error.strerror)
            self._forget(kind, sha256)
            return None
        if hashlib.sha256(content).hexdigest() != sha256:
            _log.warning("%s %s is corrupt on the disk and was deleted", kind, sha256[:12])
            self.rotten_total += 1
            self._forget(kind, sha256)
            return None
        return content

    def write(self, kind: Kind, sha256: str, content: bytes) -> None:
        """Store the object, whose content the caller has verified, and evict others for it; do nothing if it exceeds
        the whole cache. Raise OSError."""
        if len(content) > self.max_bytes:
            return
        descriptor, coming = tempfile.mkstemp(dir=self.root / "coming")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(coming).rename(self.root / kind / sha256)
        except OSError:
            with suppress(OSError):
                Path(coming).unlink()
            raise
        with self._lock:
            self._note(kind, sha256, len(content))
        self._evict()

    def _note(self, kind: Kind, sha256: str, size_bytes: int) -> None:
        self._total_bytes += size_bytes - self._sizes.pop((kind, sha256), 0)
        self._sizes[kind, sha256] = size_bytes

    def _forget(self, kind: Kind, sha256: str) -> None:
        with self._lock:
            self._total_bytes -= self._sizes.pop((kind, sha256), 0)
            with suppress(OSError):
                (self.root / kind / sha256).unlink()

    def _evict(self) -> None:
        with self._lock:
            while self._total_bytes > self.max_bytes:
                (kind, sha256), size_bytes = self._sizes.popitem(last=False)
                self._total_bytes -= size_bytes
                self.evicted_total += 1
                with suppress(OSError):
                    (self.root / kind / sha256).unlink()
