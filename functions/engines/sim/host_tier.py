"""Host memory of a simulated engine: KV blocks that outlive their place on the accelerator, as in vLLM's
OffloadingConnector (vllm/distributed/kv_transfer/kv_connector/v1/offloading).

    copied    a prompt's full blocks when they are computed (`offload_prompt_only`); a reply's with the next turn
    found     the blocks that continue the accelerator's prefix without a gap
    reloaded  over one link, one prompt after the other; the sequence waits, and the steps of others continue
    evicted   the least recently used first, when `--kv-offloading-size` is full

    reload_s = blocks x block size x seconds a token

Copies to host memory cost no time here: in vLLM they run in parallel with the steps. A block stays on the accelerator
until its space is needed, so most blocks are in both tiers.

Neighbours: `scheduler` looks blocks up and stores them; `blocks` is the accelerator's tier; `kv_events` reports both.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class HostTier:
    """KV blocks in host memory, owned by the scheduler; times are the engine's seconds."""

    def __init__(self, max_blocks: int, block_reload_s: float) -> None:
        self.max_blocks = max_blocks
        self.block_reload_s = block_reload_s
        self.reloaded_blocks = 0
        self.stored_blocks = 0
        self._kept: OrderedDict[bytes, None] = OrderedDict()  # least recently used first
        self._link_free_s = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept

    def store(self, name: bytes) -> list[bytes] | None:
        """Store a copy of a block and return the names of those evicted for it; None if it is stored already or the
        tier is off."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return None
        if not self.max_blocks:
            return None
        self._kept[name] = None
        self.stored_blocks += 1
        return [self._kept.popitem(last=False)[0] for _ in range(len(self._kept) - self.max_blocks)]

    def find_prefix(self, names: Iterable[bytes]) -> list[bytes]:
        """Return the leading names that are stored here."""
        found: list[bytes] = []
        for name in names:
            if name not in self._kept:
                break
            found.append(name)
        return found

    def reload(self, names: Sequence[bytes], now_s: float) -> float:
        """Reload these blocks after all earlier reloads, and return the engine second at which they arrive."""
        for name in reversed(names):  # so that a chain's beginning is evicted after its end
            self._kept.move_to_end(name)
        self.reloaded_blocks += len(names)
        self._link_free_s = max(self._link_free_s, now_s) + len(names) * self.block_reload_s
        return self._link_free_s

    def forget(self) -> list[bytes]:
        gone = list(self._kept)
        self._kept.clear()
        return gone
