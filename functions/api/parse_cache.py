"""Files that were judged before, remembered by name and content, so that an unchanged file costs a hash.

The name counts because places carry it. Bounded by what it takes in memory, estimated from the files' sizes; the
longest unused go first. One load at a time uses a cache: it has no lock.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from functions.api.file_result import FileResult, judge_file

# What objects take for each byte of their YAML, measured (docs/explanation/kinds.md has a Tenant's and a Model's).
MEMORY_PER_BYTE = 16
FILE_OVERHEAD_BYTES = 2_000


@dataclass(slots=True)
class ParseCache:
    """`max_bytes` of memory, 1 GiB by default: 60,000 objects take a third of it."""

    max_bytes: int = 1024 * 1024 * 1024
    hits: int = 0
    misses: int = 0
    _used_bytes: int = 0
    _kept: OrderedDict[tuple[str, bytes], tuple[FileResult, int]] = field(default_factory=OrderedDict)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def judged(self, file: str, content: bytes) -> FileResult:
        """What the file says, judged now or before."""
        key = (file, hashlib.sha256(content).digest())
        known = self._kept.get(key)
        if known is not None:
            self.hits += 1
            self._kept.move_to_end(key)
            return known[0]
        self.misses += 1
        result = judge_file(file, content)
        self._keep(key, result, len(content) * MEMORY_PER_BYTE + FILE_OVERHEAD_BYTES)
        return result

    def _keep(self, key: tuple[str, bytes], result: FileResult, cost_bytes: int) -> None:
        if cost_bytes > self.max_bytes:
            return
        self._kept[key] = (result, cost_bytes)
        self._used_bytes += cost_bytes
        while self._used_bytes > self.max_bytes:
            _, (_, freed_bytes) = self._kept.popitem(last=False)
            self._used_bytes -= freed_bytes
