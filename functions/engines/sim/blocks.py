"""KV cache: a fixed number of blocks, each free or held, and each possibly remembered by its hash.

Every block is in exactly one place: held by at least one sequence, or free. A free block keeps its content until the
space is needed (least recently freed first). Freeing is therefore also caching: this is the prefix cache. Additions
and removals are recorded as events for `kv_events`.

The hash of a full block chains three things: its parent's hash, its tokens, and what makes the same tokens mean
another KV. The latter are the adapter (name and path, on every block) and the tenant's cache salt (on the first
block, which isolates the whole chain). The rule is vLLM's (v1/core/kv_cache_utils.py); the digest is not, because
nothing outside compares it.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

ROOT = b"root"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Scope within which KV blocks are shared: only equal scopes with equal tokens share."""

    adapter_name: str | None = None
    adapter_path: str | None = None
    salt: str | None = None

    def extra(self, *, first: bool) -> bytes:
        parts = (self.adapter_name, self.adapter_path, self.salt if first else None)
        return repr(parts).encode()


def block_hash(parent: bytes | None, tokens: "array[int]", scope: CacheScope) -> bytes:
    digest = blake2b(parent or ROOT, digest_size=_DIGEST_BYTES)
    digest.update(tokens.tobytes())
    digest.update(scope.extra(first=parent is None))
    return digest.digest()


def chain(tokens: "array[int]", scope: CacheScope, *, block_size_tokens: int, blocks: int) -> list[bytes]:
    """Return the hashes of the first `blocks` full blocks of `tokens`."""
    hashes: list[bytes] = []
    parent: bytes | None = None
    for start in range(0, blocks * block_size_tokens, block_size_tokens):
        parent = block_hash(parent, tokens[start : start + block_size_tokens], scope)
        hashes.append(parent)
    return hashes


@dataclass(frozen=True, slots=True)
class Remembered:
    """Event: a block was filled after `parent`. `None` means that it is the first of its chain."""

    name: bytes
    parent: bytes | None
    tokens: "array[int]"
    scope: CacheScope


@dataclass(frozen=True, slots=True)
class Evicted:
    name: bytes


@dataclass(frozen=True, slots=True)
class Copied:
    """Event: a block was copied to host memory."""

    name: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """Event: blocks were dropped from host memory."""

    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Event: no block is remembered any more."""


BlockEvent = Remembered | Evicted | Copied | Dropped | Cleared


class BlockPool:
    def __init__(self, num_blocks: int) -> None:
        self.events: list[BlockEvent] | None = None  # None means that events are not recorded
        self.withheld_blocks = 0  # unusable blocks, as after a leak (`faults`)
        self.finds_nothing = False  # if set, remembered blocks are not found, and no event reports it (`faults`)
        self._num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(num_blocks))

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def free_blocks(self) -> int:
        return max(0, len(self._free) - self.withheld_blocks)

    @property
    def usage_ratio(self) -> float:
        """Share of blocks that are held; free blocks count as free even if they still cache something."""
        return 1.0 - self.free_blocks / self._num_blocks

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the blocks that hold the longest known prefix of this chain of hashes; none while `finds_nothing` is
        set."""
        found: list[int] = []
        for name in hashes if not self.finds_nothing else ():
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def allocate(self, shared: Sequence[int], new_blocks: int) -> list[int] | None:
        """Hold the `shared` cached blocks and `new_blocks` fresh ones, and return them; None, with none held, if not
        all fit."""
        revived = sum(1 for block in shared if self._holders[block] == 0)
        if revived + new_blocks > self.free_blocks:
            return None
        for block in shared:
            self._free.pop(block, None)
            self._holders[block] += 1
        return [*shared, *(self._allocate_oldest() for _ in range(new_blocks))]

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one hold on each block; without holds it is free. The tail goes first, as a shared prefix is worth
        more."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free[block] = None

    def remember(self, block: int, name: bytes) -> bool:
        """Make `match` find this held block under `name`. Return False if the block or the name is already known."""
        if self._hash_of[block] is not None or name in self._block_of:
            return False
        self._hash_of[block] = name
        self._block_of[name] = block
        return True

    def forget(self) -> None:
        """Forget all remembered blocks. Raise RuntimeError if a block is held."""
        if len(self._free) != self._num_blocks:
            raise RuntimeError(f"{self._num_blocks - len(self._free)} blocks are held")
        self._hash_of = [None] * self._num_blocks
        self._block_of.clear()
        if self.events is not None:
            self.events.append(Cleared())

    def pop_events(self) -> list[BlockEvent]:
        """Return the events recorded since the last call; none if events are off."""
        events = self.events or []
        if events:
            self.events = []
        return events

    def _allocate_oldest(self) -> int:
        block, _ = self._free.popitem(last=False)
        name = self._hash_of[block]
        if name is not None:
            del self._block_of[name]
            self._hash_of[block] = None
            if self.events is not None:
                self.events.append(Evicted(name))
        self._holders[block] = 1
        return block
