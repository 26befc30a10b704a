"""What an engine really has in its cache: blocks of prompts, the least recently used forgotten first.

A prompt's cached part is its longest beginning of which every block is there. Neighbours: the gateway only believes
(`decisions.prefix.record`); this is what turns out to be true.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol


class CacheNews(Protocol):
    """Who is told what the cache holds, as engines tell by their events."""

    def stored(self, blocks: Sequence[int]) -> None: ...

    def removed(self, blocks: Sequence[int]) -> None: ...


class PrefixCache:
    __slots__ = ("_blocks", "_most", "_news", "asked_tokens", "block_tokens", "hit_tokens")

    def __init__(self, kv_tokens: int, block_tokens: int, news: CacheNews | None = None) -> None:
        self.block_tokens = block_tokens
        self.asked_tokens = 0
        self.hit_tokens = 0
        self._most = kv_tokens // block_tokens
        self._news = news
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def peek(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """The cached part of a prompt that may never come."""
        known = self._blocks
        found = 0
        for block in blocks:
            if block not in known:
                break
            found += 1
        return min(found * self.block_tokens, prompt_tokens - 1)

    def cached_tokens(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        tokens = self.peek(blocks, prompt_tokens)
        self.asked_tokens += prompt_tokens
        self.hit_tokens += tokens
        return tokens

    def enter(self, blocks: Sequence[int]) -> None:
        """The last block first, so that a beginning outlives its ends."""
        known, news = self._blocks, self._news
        if news is not None:
            news.stored([block for block in blocks if block not in known])
        for block in reversed(blocks):
            if block in known:
                known.move_to_end(block)
            else:
                known[block] = None
        forgotten = [known.popitem(last=False)[0] for _ in range(len(known) - self._most)]
        if forgotten and news is not None:
            news.removed(forgotten)

    def clear(self) -> None:
        if self._news is not None:
            self._news.removed(list(self._blocks))
        self._blocks.clear()
