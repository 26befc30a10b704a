"""What an engine really has in its cache: blocks of prompts, the least recently used forgotten first.

A prompt's cached part is its longest beginning of which every block is there. Neighbours: the gateway only believes
(`decisions.prefix_record`); this is what turns out to be true.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    __slots__ = ("_blocks", "_most", "asked_tokens", "block_tokens", "hit_tokens")

    def __init__(self, kv_tokens: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.asked_tokens = 0
        self.hit_tokens = 0
        self._most = kv_tokens // block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        known = self._blocks
        found = 0
        for block in blocks:
            if block not in known:
                break
            found += 1
        tokens = min(found * self.block_tokens, prompt_tokens - 1)
        self.asked_tokens += prompt_tokens
        self.hit_tokens += tokens
        return tokens

    def enter(self, blocks: Sequence[int]) -> None:
        """The last block first, so that a beginning outlives its ends."""
        known = self._blocks
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._most:
            known.popitem(last=False)

    def clear(self) -> None:
        self._blocks.clear()
