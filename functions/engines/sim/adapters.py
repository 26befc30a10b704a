"""Location of adapter weights: in a slot (runs now), in host memory (must be copied) or on disk (the engine stalls).

Both tiers evict the least recently used adapter, but never one that runs now. Unloading by name affects the front end
only: as in vLLM, the weights stay here until they are the oldest.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import Literal, NewType

from functions.engines.sim.limits import StepCosts

AdapterId = NewType("AdapterId", int)
"""vLLM's lora_int_id: a name that is unloaded and loaded again gets a new one."""


Tier = Literal["slot", "host", "disk"]


class AdapterTiers:
    def __init__(self, *, slots: int, host: int, costs: StepCosts) -> None:
        self._costs = costs
        self._slots = _Lru(slots)
        self._host = _Lru(host)

    @property
    def in_slots(self) -> tuple[AdapterId, ...]:
        return self._slots.members

    @property
    def in_host(self) -> tuple[AdapterId, ...]:
        return self._host.members

    def reads_disk(self, adapter: AdapterId) -> bool:
        return adapter not in self._host

    def tier_of(self, adapter: AdapterId) -> Tier:
        if adapter not in self._host:
            return "disk"
        return "slot" if adapter in self._slots else "host"

    def use(self, adapter: AdapterId, *, running: Collection[AdapterId]) -> float:
        """Move the adapter into host memory and a slot, and return the seconds for which the engine stalls, 0 if it was
        in a slot. Adapters in `running` are not evicted."""
        stall_s = 0.0
        if adapter not in self._host:
            stall_s += self._costs.adapter_load_s
        if adapter not in self._slots:
            stall_s += self._costs.adapter_activate_s
        for evicted in self._host.touch(adapter, keep=running):
            self._slots.drop(evicted)
        self._slots.touch(adapter, keep=running)
        return stall_s


class _Lru:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._order: OrderedDict[AdapterId, None] = OrderedDict()

    def __contains__(self, adapter: AdapterId) -> bool:
        return adapter in self._order

    @property
    def members(self) -> tuple[AdapterId, ...]:
        return tuple(self._order)

    def drop(self, adapter: AdapterId) -> None:
        self._order.pop(adapter, None)

    def touch(self, adapter: AdapterId, *, keep: Collection[AdapterId]) -> list[AdapterId]:
        """Make the adapter the most recently used one. Return the adapters evicted for it, oldest first, none of
        `keep`."""
        self._order[adapter] = None
        self._order.move_to_end(adapter)
        surplus = len(self._order) - self._capacity
        evictable = [member for member in self._order if member != adapter and member not in keep]
        evicted = evictable[: max(surplus, 0)]
        for member in evicted:
            del self._order[member]
        return evicted
