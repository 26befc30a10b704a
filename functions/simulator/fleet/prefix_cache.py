"""The true contents of an engine's cache: blocks of prompts, evicted least recently used first.

A prompt's cached part is its longest prefix of which every block is present. With host memory (`host_tokens`), blocks
are also copied there and can be reloaded after eviction; a prompt waits for its reload (`engine_driver`). A gateway's
own record (`decisions.prefix.record`) is only an estimate of these contents.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol


class CacheListener(Protocol):
    """Receiver of cache changes, as engines publish them by events."""

    def stored(self, blocks: Sequence[int]) -> None: ...

    def removed(self, blocks: Sequence[int]) -> None: ...

    def moved_to_host(self, blocks: Sequence[int]) -> None:
        """Report blocks that are now only in host memory."""

    def left_host(self, blocks: Sequence[int]) -> None:
        """Report blocks that are no longer only in host memory."""


class PrefixCache:
    __slots__ = (
        *("_blocks", "_host", "_most", "_most_in_host", "_listener"),
        *("asked_tokens", "block_tokens", "hit_tokens", "reloaded_tokens"),
    )

    def __init__(
        self, kv_tokens: int, block_tokens: int, listener: CacheListener | None = None, *, host_tokens: int = 0
    ) -> None:
        self.block_tokens = block_tokens
        self.asked_tokens = 0
        self.hit_tokens = 0  # including reloaded ones
        self.reloaded_tokens = 0
        self._most = kv_tokens // block_tokens
        self._listener = listener
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._host: OrderedDict[int, None] = OrderedDict()  # copies; the accelerator may have the block too
        self._most_in_host = host_tokens // block_tokens

    def peek(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """Return the prompt's tokens cached on the accelerator, at most all but one, without counting a lookup."""
        known = self._blocks
        found = 0
        for block in blocks:
            if block not in known:
                break
            found += 1
        return min(found * self.block_tokens, prompt_tokens - 1)

    def to_reload(self, blocks: Sequence[int]) -> int:
        """Return the prompt's tokens that host memory has beyond those on the accelerator."""
        if not self._host:
            return 0
        here = there = 0
        for block in blocks:
            if block in self._blocks and here == there:
                here += 1
            elif block not in self._blocks and block not in self._host:
                break
            there += 1
        return (there - here) * self.block_tokens

    def cached_tokens(self, blocks: Sequence[int], prompt_tokens: int, reloaded_tokens: int = 0) -> int:
        """Count a lookup and return the cached tokens, including `reloaded_tokens` from host memory; at most all but
        one."""
        tokens = self.peek(blocks, prompt_tokens)
        more = min(reloaded_tokens, prompt_tokens - 1 - tokens)
        self.asked_tokens += prompt_tokens
        self.hit_tokens += tokens + more
        self.reloaded_tokens += more
        return tokens + more

    def enter(self, blocks: Sequence[int]) -> None:
        """Insert a prompt's blocks, the last one first, so that a prefix outlives its continuations; evict the least
        recently used ones."""
        known, listener = self._blocks, self._listener
        if listener is not None:
            fresh = [block for block in blocks if block not in known]
            listener.stored(fresh)
            if self._host:
                listener.left_host([block for block in fresh if block in self._host])
        for block in reversed(blocks):
            if block in known:
                known.move_to_end(block)
            else:
                known[block] = None
        forgotten = [known.popitem(last=False)[0] for _ in range(len(known) - self._most)]
        if forgotten and listener is not None:
            listener.removed(forgotten)
            if self._host:
                listener.moved_to_host([block for block in forgotten if block in self._host])
        if self._most_in_host:
            self._copy(blocks)

    def _copy(self, blocks: Sequence[int]) -> None:
        host = self._host
        for block in reversed(blocks):
            host[block] = None
            host.move_to_end(block)
        gone = [host.popitem(last=False)[0] for _ in range(len(host) - self._most_in_host)]
        if gone and self._listener is not None:
            self._listener.left_host([block for block in gone if block not in self._blocks])

    def clear(self) -> None:
        if self._listener is not None:
            self._listener.removed(list(self._blocks))
            self._listener.left_host(list(self._host))
        self._blocks.clear()
        self._host.clear()
