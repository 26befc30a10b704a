"""Digests on a node's disk in a few bytes: a Bloom filter, sent once a second in every heartbeat.

Law: no false "no", a bounded share of false "yes". A false yes costs one fetch that the filter should have saved; a
false no would cost it every time. Keys are the first 16 hex digits of a digest, which are also in an engine's name for
an adapter (`functions.api.ids`). They are sha256 bits, so they serve as hashes directly.

    bits = ceil(n x -ln(p) / ln(2)^2)     hashes = round(bits / n x ln(2))

Worked example (test_worked_example_from_the_prologue): 2,000 digests at p = 1 % take 19,171 bits = 2,397 bytes and 7
hashes. At the limit of 16 KiB (`MAX_BYTES`) 13,673 digests still have p = 1 %; 27,000 have 10 %, and so on: the filter
becomes less exact, and the heartbeat does not grow.
"""

import base64
import binascii
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil, log

from functions.api.ids import ENGINE_NAME_HEX_DIGITS, Digest, EngineName

FALSE_POSITIVE_RATIO = 0.01
MAX_BYTES = 16 * 1024  # size of the encoded filter before base64: one byte for the number of hashes, the rest bits
MAX_HASHES = 16
MAX_TEXT_CHARS = 4 * ceil(MAX_BYTES / 3)
_HALF_BITS = 32


@dataclass(frozen=True, slots=True)
class Bloom:
    """Bloom filter of digests. `bits` is never empty: without digests there is no filter (`build` returns None)."""

    bits: bytes
    hashes: int

    def holds(self, digest: Digest) -> bool:
        """Return True if the digest is probably in the filter, False if it certainly is not."""
        return self._has(_key(digest))

    def holds_adapter(self, name: EngineName) -> bool:
        """Return True if the files of an adapter with this engine name, `id@sha256:<16 hex>`, are probably in the
        filter; False if they are not, and for any other name."""
        key = _key(name.rpartition("@")[2])
        return key is not None and self._has(key)

    def encode(self) -> str:
        return base64.b64encode(bytes((self.hashes,)) + self.bits).decode()

    def _has(self, key: int | None) -> bool:
        if key is None:
            return False
        size, bits = 8 * len(self.bits), self.bits
        return all(bits[at >> 3] & (1 << (at & 7)) for at in _positions(key, self.hashes, size))


def build(digests: Collection[Digest], ratio: float = FALSE_POSITIVE_RATIO) -> Bloom | None:
    """Return the filter of `digests`, or None if there are none."""
    keys = {key for digest in digests if (key := _key(digest)) is not None}
    if not keys:
        return None
    size_bytes = min(MAX_BYTES - 1, ceil(-len(keys) * log(ratio) / log(2) ** 2 / 8))
    hashes = min(MAX_HASHES, max(1, round(8 * size_bytes / len(keys) * log(2))))
    bits = bytearray(size_bytes)
    for key in keys:
        for at in _positions(key, hashes, 8 * size_bytes):
            bits[at >> 3] |= 1 << (at & 7)
    return Bloom(bytes(bits), hashes)


def decode(text: str) -> Bloom | None:
    """Return the filter encoded in `text`, or None (nothing is known of the disk) if it is empty or malformed."""
    if not text or len(text) > MAX_TEXT_CHARS:
        return None
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not 2 <= len(content) <= MAX_BYTES or not 1 <= content[0] <= MAX_HASHES:
        return None
    return Bloom(content[1:], content[0])


def _key(digest: str) -> int | None:
    scheme, _, digits = digest.partition(":")
    if scheme != "sha256" or len(digits) < ENGINE_NAME_HEX_DIGITS:
        return None
    try:
        return int(digits[:ENGINE_NAME_HEX_DIGITS], 16)
    except ValueError:
        return None


def _positions(key: int, hashes: int, size: int) -> list[int]:
    """Return the bit positions of a key, computed from its two independent halves (Kirsch and Mitzenmacher, 2006)."""
    first, step = key >> _HALF_BITS, (key & ((1 << _HALF_BITS) - 1)) | 1
    return [(first + turn * step) % size for turn in range(hashes)]
