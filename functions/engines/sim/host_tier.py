"""Host memory of a simulated engine: KV blocks that outlive their place on the accelerator, as vLLM's
OffloadingConnector keeps them (vllm/distributed/kv_transfer/kv_connector/v1/offloading).

    copied    a prompt's full blocks, when they are computed (`offload_prompt_only`): a reply's with the next turn
    found     after what the accelerator has of a prompt, as far as the chain goes on here without a gap
    reloaded  over one link, one prompt after the other: until then the sequence waits, and the others' steps go on
    evicted   the least recently used first, when `--kv-offloading-size` is full

    reload_s = blocks x block size x seconds a token

Copies to host memory cost nothing here: in vLLM they run beside the steps. A block stays on the accelerator for as long
as nobody needs its place; so most are in both.

Neighbours: `scheduler` asks and stores; `blocks` is the accelerator's; `kv_events` tells of both.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class HostTier:
    """Owned by the scheduler; times are the engine's seconds."""

    def __init__(self, max_blocks: int, block_reload_s: float) -> None:
        self.max_blocks = max_blocks
        self.block_reload_s = block_reload_s
        self.reloaded_blocks = 0
        self.stored_blocks = 0
        self._kept: OrderedDict[bytes, None] = OrderedDict()  # the least recently used first
        self._link_free_s = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept

    def store(self, name: bytes) -> list[bytes] | None:
        """Keep a copy; what had to leave for it, None where it is kept already or nothing is."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return None
        if not self.max_blocks:
            return None
        self._kept[name] = None
        self.stored_blocks += 1
        return [self._kept.popitem(last=False)[0] for _ in range(len(self._kept) - self.max_blocks)]

    def found(self, names: Iterable[bytes]) -> list[bytes]:
        """The leading ones that are here."""
        found: list[bytes] = []
        for name in names:
            if name not in self._kept:
                break
            found.append(name)
        return found

    def reload(self, names: Sequence[bytes], now_s: float) -> float:
        """Fetch these; when they will have come."""
        for name in reversed(names):  # a beginning outlives its ends
            self._kept.move_to_end(name)
        self.reloaded_blocks += len(names)
        self._link_free_s = max(self._link_free_s, now_s) + len(names) * self.block_reload_s
        return self._link_free_s

    def forget(self) -> list[bytes]:
        gone = list(self._kept)
        self._kept.clear()
        return gone
