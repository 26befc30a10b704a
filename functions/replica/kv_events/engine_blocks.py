"""The engine's blocks under names that mean the same everywhere, and what changed since the last update.

The engine names a block by its own hash; events of children and removals refer to that. Here each gets the name that a
gateway makes from the same tokens (`functions.decisions.prefix.block_names`). A block whose parent is not known
cannot be named, and is left out with all that follow it; so is a run with gaps in it, as a model with sliding windows
stores.

Only what lies on the accelerator counts: what an engine keeps in host memory or on disk it must first fetch, and how
long that takes nobody measures yet. Of a model with several KV groups (sliding windows), the first tells for all.

Memory is bounded by `max_blocks`, some 250 bytes each; beyond it, new blocks are left out until others go.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from functions.decisions.prefix.block_names import TOKEN_BYTES, block_name, scope_seed, with_extra
from functions.replica.kv_events.source import Cleared, EngineHash, Event, Removed, Stored


class EngineBlocks:
    """Owned by one event loop."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.block_tokens = 0  # of the newest event; 0: none yet
        self.left_out_total = 0  # blocks that could not be named or had no room
        self._name_of: dict[EngineHash, int] = {}
        self._held: dict[int, int] = {}  # by name, how many of the engine's hashes mean it
        self._added: set[int] = set()
        self._removed: set[int] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def names(self) -> tuple[int, ...]:
        return tuple(self._held)

    def take(self, event: Event) -> bool:
        """Take one event in; False where everything is gone at once, and a new generation begins."""
        if isinstance(event, Cleared):
            self.clear()
            return False
        if event.medium in (None, "GPU") and event.group_idx in (None, 0):
            if isinstance(event, Stored):
                self._store(event)
            else:
                self._remove(event)
        return True

    def take_changes(self) -> tuple[set[int], set[int]]:
        """The names that came and went since this was last asked."""
        changes = self._added, self._removed
        self._added, self._removed = set(), set()
        return changes

    def clear(self) -> None:
        self._name_of.clear()
        self._held.clear()
        self._added, self._removed = set(), set()

    def _store(self, event: Stored) -> None:
        self.block_tokens = event.block_size
        adapter = event.lora_name or ""
        parent = self._name_of.get(event.parent_block_hash) if event.parent_block_hash is not None else None
        orphaned = parent is None and event.parent_block_hash is not None
        if orphaned or len(event.token_ids) != len(event.block_hashes) * event.block_size:
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

    def _hold(self, engine_hash: EngineHash, name: int) -> None:
        self._name_of[engine_hash] = name
        count = self._held[name] = self._held.get(name, 0) + 1
        if count == 1:
            if name in self._removed:
                self._removed.discard(name)
            else:
                self._added.add(name)

    def _remove(self, event: Removed) -> None:
        for engine_hash in event.block_hashes:
            name = self._name_of.pop(engine_hash, None)
            if name is None:
                continue
            self._held[name] -= 1
            if self._held[name] == 0:
                del self._held[name]
                if name in self._added:
                    self._added.discard(name)
                else:
                    self._removed.add(name)


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
