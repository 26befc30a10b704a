"""The engine's blocks under names that mean the same everywhere, and what changed since the last update.

The engine names a block by its own hash; events of children and removals refer to that. Here each gets the name that a
gateway makes from the same tokens (`functions.decisions.prefix.block_names`). A block whose parent is not known
cannot be named, and is left out with all that follow it; so is a run with gaps in it, as a model with sliding windows
stores.

What the engine has copied to host memory (vLLM's OffloadingConnector, medium `CPU`) is told by its hash alone, or
without the block's extra keys, so it is known only where the accelerator's event has named that block before. A block
that leaves the accelerator keeps its name while host memory has it, and for a while after: of the events of one step
those of the accelerator come first. What lies on disks is left out. Of a model with several KV groups (sliding
windows), the first tells for all.
Worked example (test_a_block_that_moves_to_host_memory): 1 and 2 are stored, 2 is copied to host memory (nothing changes
for anybody: it is on the accelerator), 2 leaves the accelerator: it is in host memory alone. When it leaves that, it is
gone.

Memory is bounded by `max_blocks`, some 250 bytes each; beyond it, new blocks are left out until others go.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from functions.decisions.prefix.block_names import TOKEN_BYTES, block_name, scope_seed, with_extra
from functions.replica.kv_events.source import Cleared, EngineHash, Event, Removed, Stored

_GONE_KEPT = 4096  # blocks that left both places lately: a step's, whose host event comes after the accelerator's


@dataclass(slots=True)
class Changes:
    """Names that came and went."""

    added: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def come(self, name: int) -> None:
        if name in self.removed:
            self.removed.discard(name)
        else:
            self.added.add(name)

    def go(self, name: int) -> None:
        if name in self.added:
            self.added.discard(name)
        else:
            self.removed.add(name)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


class EngineBlocks:
    """Owned by one event loop."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.max_host_blocks = max_blocks
        self.block_tokens = 0  # of the newest event; 0: none yet
        self.left_out_total = 0  # blocks that could not be named or had no room
        self._name_of: dict[EngineHash, int] = {}  # of what is on the accelerator
        self._host_name_of: dict[EngineHash, int] = {}  # of what is in host memory, whether or not it is there, too
        self._gone: OrderedDict[EngineHash, int] = OrderedDict()
        self._held: dict[int, int] = {}  # by name, how many of the engine's hashes mean it
        self._in_host: dict[int, int] = {}  # the same of host memory
        self._changes, self._host_changes = Changes(), Changes()

    def __len__(self) -> int:
        """Names on the accelerator."""
        return len(self._held)

    @property
    def names(self) -> tuple[int, ...]:
        return tuple(self._held)

    @property
    def host_names(self) -> tuple[int, ...]:
        """Of what is in host memory alone."""
        return tuple(name for name in self._in_host if name not in self._held)

    def take(self, event: Event) -> bool:
        """Take one event in; False where everything is gone at once, and a new generation begins."""
        if isinstance(event, Cleared):
            self.clear()
            return False
        if event.group_idx not in (None, 0):
            return True
        if event.medium in (None, "GPU"):
            if isinstance(event, Stored):
                self._store(event)
            else:
                self._remove(event)
        elif event.medium == "CPU":
            (self._copy if isinstance(event, Stored) else self._drop)(event)
        return True

    def take_changes(self) -> tuple[Changes, Changes]:
        """What came and went since this was last asked: on the accelerator, and in host memory alone."""
        changes = self._changes, self._host_changes
        self._changes, self._host_changes = Changes(), Changes()
        return changes

    def clear(self) -> None:
        for known in (self._name_of, self._host_name_of, self._gone, self._held, self._in_host):
            known.clear()
        self._changes, self._host_changes = Changes(), Changes()

    def _store(self, event: Stored) -> None:
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
        """Its name, wherever the block lies."""
        name = self._name_of.get(engine_hash)
        return name if name is not None else self._host_name_of.get(engine_hash)

    def _hold(self, engine_hash: EngineHash, name: int) -> None:
        self._name_of[engine_hash] = name
        self._gone.pop(engine_hash, None)
        count = self._held[name] = self._held.get(name, 0) + 1
        if count == 1:
            self._changes.come(name)
            if name in self._in_host:
                self._host_changes.go(name)

    def _remove(self, event: Removed) -> None:
        for engine_hash in event.block_hashes:
            name = self._name_of.pop(engine_hash, None)
            if name is None:
                continue
            self._keep_name(engine_hash, name)
            self._held[name] -= 1
            if self._held[name] == 0:
                del self._held[name]
                self._changes.go(name)
                if name in self._in_host:
                    self._host_changes.come(name)

    def _copy(self, event: Stored | Removed) -> None:
        """To host memory."""
        for engine_hash in event.block_hashes:
            if engine_hash in self._host_name_of:
                continue  # a chunk that begins in another one tells its blocks again
            name = self._name_of.get(engine_hash, self._gone.get(engine_hash))
            if name is None or len(self._host_name_of) >= self.max_host_blocks:
                self.left_out_total += 1
                continue
            self._host_name_of[engine_hash] = name
            count = self._in_host[name] = self._in_host.get(name, 0) + 1
            if count == 1 and name not in self._held:
                self._host_changes.come(name)

    def _drop(self, event: Stored | Removed) -> None:
        """From host memory."""
        for engine_hash in event.block_hashes:
            name = self._host_name_of.pop(engine_hash, None)
            if name is None:
                continue
            self._in_host[name] -= 1
            if self._in_host[name] == 0:
                del self._in_host[name]
                if name not in self._held:
                    self._host_changes.go(name)

    def _keep_name(self, engine_hash: EngineHash, name: int) -> None:
        self._gone[engine_hash] = name
        if len(self._gone) > _GONE_KEPT:
            self._gone.popitem(last=False)


def _without_adapter(extra: Sequence[Any] | None, adapter: str) -> list[Any]:
    """A block's extra keys begin with the adapter's name, where it has one."""
    keys = list(extra or ())
    return keys[1:] if adapter and keys and keys[0] == adapter else keys


def _salt_in(extra: list[Any]) -> tuple[str, list[Any]]:
    """The cache salt of a chain's first block: the one text among its keys (images are pairs); and the other keys."""
    texts = [key for key in extra if isinstance(key, str)]
    if len(texts) != 1:
        return "", extra
    return texts[0], [key for key in extra if not isinstance(key, str)]
