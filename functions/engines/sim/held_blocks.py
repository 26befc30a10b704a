"""KV blocks of prompts computed for another engine, held until that engine has read them (`kv_transfer`)."""

from typing import NamedTuple

from functions.engines.sim.blocks import BlockPool


class HeldTransfer(NamedTuple):
    blocks: list[int]
    tokens: int
    cached_tokens: int
    until_s: float


class HeldBlocks:
    """Blocks of finished prompts for other engines. Each set is read once, or released when its lease ends."""

    def __init__(self, pool: BlockPool, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._held: dict[str, HeldTransfer] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, name: str, blocks: list[int], tokens: int, cached_tokens: int, now_s: float) -> None:
        self._held[name] = HeldTransfer(blocks, tokens, cached_tokens, now_s + self._lease_s)

    def find(self, name: str) -> "HeldTransfer | None":
        return self._held.get(name)

    def read(self, name: str, now_s: float) -> int:
        """Release the blocks of `name` and return their number of tokens; 0 if there are none any more."""
        self.expire(now_s)
        held = self._held.pop(name, None)
        if held is None:
            return 0
        self._pool.release(held.blocks)
        return held.tokens

    def expire(self, now_s: float) -> None:
        while self._held:
            name, oldest = next(iter(self._held.items()))
            if now_s < oldest.until_s:
                return
            self._pool.release(self._held.pop(name).blocks)

    def forget(self) -> None:
        """Release all held blocks, because the cache is dropped."""
        for held in self._held.values():
            self._pool.release(held.blocks)
        self._held.clear()
