"""The hash that names a snapshot's content, stored as a tree so that a small change is cheap to hash.

Each section's entries are divided into 256 buckets by the checksum of their names. A bucket's digest is SHA-256
over its entries' lines, by name; the root is SHA-256 over the digests of all non-empty buckets. One changed tenant
among 50,000 means hashing about 200 lines and 2,000 digests again, not 160,000 lines. Two contents differ only
where their digests do (test_only_buckets_that_differ_are_compared).

Neighbours: `snapshot_index` stores a tree with the entries; `snapshot_document` reads and writes the lines.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import msgspec

from functions.api.snapshot_entries import SECTIONS, AnyEntry

BUCKETS = 256
Breathe = Callable[[], None]  # called between slices of long work, so that a thread can let others run

_encoder = msgspec.json.Encoder(order="deterministic")


def line_of(entry: msgspec.Struct) -> bytes:
    """Return the entry's line in the document: sorted keys, no spaces, no newline inside."""
    return _encoder.encode(entry)


def bucket_of(name: str) -> int:
    return crc32(name.encode()) % BUCKETS


@dataclass(frozen=True, slots=True)
class Branch:
    """One section: for each bucket its sorted names, the digest of their entries (empty if none), and their size in
    the document."""

    names: tuple[tuple[str, ...], ...] = ((),) * BUCKETS
    digests: tuple[bytes, ...] = (b"",) * BUCKETS
    sizes_bytes: tuple[int, ...] = (0,) * BUCKETS


@dataclass(frozen=True, slots=True)
class HashTree:
    branches: Mapping[str, Branch]
    root: str  # `sha256:<hex>`

    @property
    def size_bytes(self) -> int:
        """Size of all entries in the whole document, without its header."""
        return sum(sum(branch.sizes_bytes) for branch in self.branches.values())


def tree_of(branches: Mapping[str, Branch]) -> HashTree:
    digest = hashlib.sha256()
    for section in SECTIONS:
        branch = branches[section]
        for bucket, bucket_digest in enumerate(branch.digests):
            if bucket_digest:
                digest.update(b"%b %d " % (section.encode(), bucket) + bucket_digest)
    return HashTree(branches, "sha256:" + digest.hexdigest())


EMPTY_TREE = tree_of({section: Branch() for section in SECTIONS})


def grown(branch: Branch, entries: Mapping[str, AnyEntry], touched: Sequence[str], breathe: Breathe) -> Branch:
    """Return the branch updated for `entries`, all of its section; `touched` are the names that were added, changed or
    removed."""
    by_bucket: dict[int, list[str]] = {}
    for count, name in enumerate(touched):
        by_bucket.setdefault(bucket_of(name), []).append(name)
        if count % 1000 == 0:
            breathe()
    names, digests, sizes_bytes = list(branch.names), list(branch.digests), list(branch.sizes_bytes)
    for bucket, changed in by_bucket.items():
        present = sorted(name for name in {*names[bucket], *changed} if name in entries)
        names[bucket] = tuple(present)
        digests[bucket], sizes_bytes[bucket] = _digest([entries[name] for name in present])
        breathe()
    return Branch(tuple(names), tuple(digests), tuple(sizes_bytes))


def _digest(entries: Sequence[AnyEntry]) -> tuple[bytes, int]:
    if not entries:
        return b"", 0
    lines = b"\n".join([_encoder.encode(entry) for entry in entries])
    return hashlib.sha256(lines).digest(), len(lines) + 1
