"""The engine's blocks under names that mean the same everywhere, and the changes since the last update.

The engine names a block by its own hash, and events of children and removals refer to that hash. Here each block gets
the name that a gateway makes from the same tokens (`functions.decisions.prefix.block_names`). A block whose parent is
unknown cannot be named, and is left out with all its descendants. The same holds for a run with gaps, as a model with
sliding windows stores.

Blocks in host memory (vLLM's OffloadingConnector, medium `CPU`) are reported by hash alone, or without the block's
extra keys. They are known only if an event of the accelerator has named them before. A block that leaves the
accelerator keeps its name while host memory has it, and for a while after, because a step's events list the
accelerator first. Blocks on disks are left out. Of a model with several KV groups (sliding windows), only the first
counts.

Worked example (test_a_block_that_moves_to_host_memory): 1 and 2 are stored. 2 is copied to host memory: no change,
since it is on the accelerator. 2 leaves the accelerator: it is in host memory alone. When it leaves host memory, it
is gone.

Memory is bounded by `max_blocks`, some 250 bytes each; beyond it, new blocks are left out until others are removed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from functions.decisions.prefix.block_names import TOKEN_BYTES, block_name, scope_seed, with_extra
from functions.replica.kv_events.source import AllBlocksCleared, BlocksRemoved, BlocksStored, EngineHash, Event

_GONE_KEPT = 4096  # blocks that recently left both tiers: a step's host event follows the accelerator's


@dataclass(slots=True)
class BlockNameChanges:
    """Names that were added and removed."""

    added: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def add(self, name: int) -> None:
        if name in self.removed:
            self.removed.discard(name)
        else:
            self.added.add(name)

    def remove(self, name: int) -> None:
        if name in self.added:
            self.added.discard(name)
        else:
            self.removed.add(name)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


class EngineBlocks:
    """Index of the engine's KV blocks by name. Owned by one event loop."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.max_host_blocks = max_blocks
        self.block_tokens = 0  # block size of the newest event; 0 before the first one
        self.left_out_total = 0  # blocks that could not be named or had no room
        self._name_of: dict[EngineHash, int] = {}  # blocks on the accelerator
        self._host_name_of: dict[EngineHash, int] = {}  # blocks in host memory, on the accelerator or not
        self._gone: OrderedDict[EngineHash, int] = OrderedDict()
        self._held: dict[int, int] = {}  # by name, number of the engine's hashes that mean it
        self._in_host: dict[int, int] = {}  # the same for host memory
        self._changes, self._host_changes = BlockNameChanges(), BlockNameChanges()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def names(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def host_names(self) -> tuple[int, ...]:
        """Names of blocks that are in host memory, but not on the accelerator."""
        return tuple(name for name in self._in_host if name not in self._held)

    def apply_event(self, event: Event) -> bool:
        """Apply one event; events of other KV cache groups and other media are ignored. Return False if the cache was
        cleared and a new generation begins, else True."""
        if isinstance(event, AllBlocksCleared):
            self.clear()
            return False
        if event.group_idx not in (None, 0):
            return True
        if event.medium in (None, "GPU"):
            if isinstance(event, BlocksStored):
                self._store(event)
            else:
                self._remove(event)
        elif event.medium == "CPU":
            (self._copy if isinstance(event, BlocksStored) else self._drop)(event)
        return True

    def pop_changes(self) -> tuple[BlockNameChanges, BlockNameChanges]:
        """Return the names that were added and removed since the last call: on the accelerator, and in host memory
        alone."""
        changes = self._changes, self._host_changes
        self._changes, self._host_changes = BlockNameChanges(), BlockNameChanges()
        return changes

    def clear(self) -> None:
        for known in (self._name_of, self._host_name_of, self._gone, self._held, self._in_host):
            known.clear()
        self._changes, self._host_changes = BlockNameChanges(), BlockNameChanges()

    def _store(self, event: BlocksStored) -> None:
        self.block_tokens = event.block_size or self.block_tokens
        adapter = event.lora_name or ""
        parent = self._known(event.parent_block_hash) if event.parent_block_hash is not None else None
        orphaned = parent is None and event.parent_block_hash is not None
        if orphaned or not event.block_size or len(event.token_ids) != len(event.block_hashes) * event.block_size:
            self.left_out_total += len(event.block_hashes)
            return
        tokens, size = array("q", event.token_ids).tobytes(), event.block_size * TOKEN_BYTES
        for at, engine_hash in enumerate(event.block_hashes):
            extra = _without_adapter(event.extra_keys[at] if event.extra_keys is not None else None, adapter)
            if parent is None:
                salt, extra = _salt_in(extra)
                parent = scope_seed(adapter, salt)
            if extra:
                parent = with_extra(parent, extra)
            parent = block_name(parent, tokens[at * size : (at + 1) * size])
            if engine_hash in self._name_of:
                continue
            if len(self._name_of) >= self.max_blocks:
                self.left_out_total += len(event.block_hashes) - at
                return
            self._hold(engine_hash, parent)

    def _known(self, engine_hash: EngineHash) -> int | None:
        """Return the name of a block on the accelerator or in host memory, by the engine's hash; None if it is in
        neither."""
        name = self._name_of.get(engine_hash)
        return name if name is not None else self._host_name_of.get(engine_hash)

    def _hold(self, engine_hash: EngineHash, name: int) -> None:
        self._name_of[engine_hash] = name
        self._gone.pop(engine_hash, None)
        count = self._held[name] = self._held.get(name, 0) + 1
        if count == 1:
            self._changes.add(name)
            if name in self._in_host:
                self._host_changes.remove(name)

    def _remove(self, event: BlocksRemoved) -> None:
        for engine_hash in event.block_hashes:
            name = self._name_of.pop(engine_hash, None)
            if name is None:
                continue
            self._keep_name(engine_hash, name)
            self._held[name] -= 1
            if self._held[name] == 0:
                del self._held[name]
                self._changes.remove(name)
                if name in self._in_host:
                    self._host_changes.add(name)

    def _copy(self, event: BlocksStored | BlocksRemoved) -> None:
        """Record blocks that were copied to host memory. Those without a known name, or beyond `max_host_blocks`, are
        counted as left out."""
        for engine_hash in event.block_hashes:
            if engine_hash in self._host_name_of:
                continue  # chunks may overlap, so a block can be reported again
            name = self._name_of.get(engine_hash, self._gone.get(engine_hash))
            if name is None or len(self._host_name_of) >= self.max_host_blocks:
                self.left_out_total += 1
                continue
            self._host_name_of[engine_hash] = name
            count = self._in_host[name] = self._in_host.get(name, 0) + 1
            if count == 1 and name not in self._held:
                self._host_changes.add(name)

    def _drop(self, event: BlocksStored | BlocksRemoved) -> None:
        """Record blocks that were dropped from host memory; unknown ones are ignored."""
        for engine_hash in event.block_hashes:
            name = self._host_name_of.pop(engine_hash, None)
            if name is None:
                continue
            self._in_host[name] -= 1
            if self._in_host[name] == 0:
                del self._in_host[name]
                if name not in self._held:
                    self._host_changes.remove(name)

    def _keep_name(self, engine_hash: EngineHash, name: int) -> None:
        self._gone[engine_hash] = name
        if len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)


def _without_adapter(extra: Sequence[Any] | None, adapter: str) -> list[Any]:
    """Return a block's extra keys without the adapter's name, with which they begin if the block has an adapter."""
    keys = list(extra or ())
    return keys[1:] if adapter and keys and keys[0] == adapter else keys


def _salt_in(extra: list[Any]) -> tuple[str, list[Any]]:
    """Return a chain's cache salt (the only text among its first block's keys; "" if there is not exactly one) and the
    other keys."""
    texts = [key for key in extra if isinstance(key, str)]
    if len(texts) != 1:
        return "", extra
    return texts[0], [key for key in extra if not isinstance(key, str)]
