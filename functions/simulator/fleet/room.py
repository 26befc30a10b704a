"""One pool at one gateway: its waiting room, its record of what was sent where, its budget of retries."""

from collections.abc import Iterable, Mapping
from zlib import crc32

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.admission.queue import Admission
from functions.decisions.admission.ticket import Ticket, cost_tokens
from functions.decisions.overload.gateway_share import RoomLadder, shiftable_ratio
from functions.decisions.prefix.record import NOTHING, PrefixRecord
from functions.decisions.routing.fallback import shift_targets
from functions.decisions.routing.retry import RetryBudget
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.view import FleetView
from functions.simulator.events import Events
from functions.simulator.fleet.adapter_tiers import engine_name_of
from functions.simulator.fleet.request import Request
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.fleet.told_prefixes import ToldPrefixes
from functions.simulator.workload.asked import Asked

BASE = EngineName("base")
MAX_BLOCKS = 2_000_000
_MAX_NAMES = 100_000
_DRAWS = 2**32
_FOREGROUND = (0, 1)  # bands that do not wait by design
_KEPT_TWICE = 2  # of a replica's cache is taken for sent before the record turns: as `functions.gateway.prefix.index`
_HALF_INT = (1 << 62) - 1


class Room:
    __slots__ = (
        "_block_tokens",
        "_record",
        "_setting",
        "_tickets",
        "_told",
        "admission",
        "budget",
        "ladder",
        "pool",
        "routing",
        "waiting",
    )

    def __init__(
        self, pool: PoolSetting, setting: Setting, now_s: float, max_blocks: int, told: ToldPrefixes | None
    ) -> None:
        self.pool = pool.name
        self.routing = pool.routing or setting.routing
        entry = pool.admission if pool.admission is not None and setting.admission is not None else setting.admission
        self.admission = Admission(entry, now_s) if entry is not None else None
        self.ladder = RoomLadder() if setting.ladder and self.admission is not None else None
        self.budget = RetryBudget(updated_s=now_s)
        self.waiting: dict[int, Request] = {}  # by their ticket's number
        self._tickets = 0
        self._setting = setting
        self._block_tokens = setting.block_tokens
        self._record = PrefixRecord(max_blocks, 2 * self.routing.session_ttl_s)
        self._told = told  # None: the policy goes by what was sent

    def ticket(self, request: Request, now_s: float) -> Ticket:
        asked, setting = request.asked, self._setting
        self._tickets += 1
        prompt, expected = asked.prompt_tokens, request.expected_tokens
        quota = setting.quotas.get(asked.tenant, setting.quota) if setting.quotas else setting.quota
        assert self.admission is not None
        return Ticket(
            self._tickets,
            asked.tenant,
            quota.weight if quota is not None else 1.0,
            asked.band,
            prompt,
            prompt + expected,
            cost_tokens(prompt, expected),
            now_s + self.admission.rules[asked.band].max_wait_s,
            now_s,
            content=b"%d" % request.number,
        )

    def wait(self, now_s: float) -> tuple[float, float, float]:
        """Seconds that the next request that is not batch would wait; KV tokens that wait: all, and without batch."""
        admission = self.admission
        if admission is None:
            return 0.0, 0.0, 0.0
        wait_s = max(admission.band_wait_s(band, now_s) for band in _FOREGROUND)
        queued_tokens = [queue.queued_kv_tokens for queue in admission.queues]
        return wait_s, sum(queued_tokens), sum(queued_tokens[band] for band in _FOREGROUND)

    def cached_tokens(self, request: Request, now_s: float) -> Mapping[ReplicaId, int]:
        """Prompt tokens that each replica has in its cache, as far as this gateway knows."""
        if not request.blocks:
            return NOTHING
        told = self._told
        known = told.match(request.blocks) if told is not None else self._record.match(request.blocks, now_s)
        most = request.asked.prompt_tokens - 1
        return {replica: min(blocks * self._block_tokens, most) for replica, blocks in known.items()}

    def sent_elsewhere(self, request: Request) -> None:
        """It was asked of this pool, and another one gets it: it counts as offered all the same."""
        if self.admission is not None:
            queue = self.admission.queues[request.asked.band]
            queue.arrived += 1
            queue.arrived_cost += cost_tokens(request.asked.prompt_tokens, request.expected_tokens)

    def sent(self, request: Request, replica_id: ReplicaId, now_s: float) -> None:
        if self._told is not None:
            return
        held_tokens = request.asked.prompt_tokens + request.expected_tokens
        self._record.enter(request.blocks, replica_id, held_tokens, self._block_tokens, now_s)

    def heard(self, heartbeat: Heartbeat) -> None:
        replica_id = ReplicaId(heartbeat.replica_id)
        if heartbeat.phase in ("starting", "dead"):
            self._record.forget(replica_id)
        capacity_tokens = heartbeat.kv_blocks_total * heartbeat.kv_block_tokens
        self._record.holds_at_most(replica_id, _KEPT_TWICE * capacity_tokens)

    def forget(self, replica_id: ReplicaId) -> None:
        self._record.forget(replica_id)


class Rooms:
    """All pools of one gateway."""

    def __init__(
        self, setting: Setting, fleet: FleetView, events: Events, told: Mapping[PoolName, ToldPrefixes]
    ) -> None:
        pools = setting.all_pools
        self._fleet = fleet
        most_blocks = MAX_BLOCKS // len(pools)
        self._rooms = {pool.name: Room(pool, setting, events.now_s, most_blocks, told.get(pool.name)) for pool in pools}
        self._first = pools[0].name
        self._names: dict[str, EngineName] = {}

    def room(self, pool: PoolName) -> Room:
        return self._rooms[pool]

    def all(self) -> Iterable[Room]:
        return self._rooms.values()

    def look_at_ladder(self, room: Room, now_s: float) -> None:
        """As `functions.gateway.admission.queue` does: how much of what comes other pools would take, and what is
        done."""
        if room.ladder is None or room.admission is None:
            return
        targets = shift_targets(room.routing.fallback, room.pool, self._serves)
        admissions = [self._rooms[target].admission for target in targets]
        uses = [admission.used_ratio if admission is not None else 0.0 for admission in admissions]
        room.ladder.look(room.admission, now_s, shiftable_ratio=shiftable_ratio(uses))

    def _serves(self, pool: PoolName) -> bool:
        return pool in self._rooms and bool(self._fleet.index(pool).ready)

    def is_pool(self, pool: PoolName) -> bool:
        return pool in self._rooms

    def pool_of(self, asked: str | None) -> PoolName:
        """KeyError where the workload names a pool that the setting has not."""
        return self._rooms[PoolName(asked)].pool if asked is not None else self._first

    def engine_name(self, adapter: str | None) -> EngineName:
        if adapter is None:
            return BASE
        found = self._names.get(adapter)
        if found is None:
            found = engine_name_of(adapter)
            if len(self._names) < _MAX_NAMES:
                self._names[adapter] = found
        return found

    def blocks_of(self, asked: Asked) -> tuple[int, ...]:
        """An adapter's KV is none of its base's, nor of another's."""
        own = xxh3_64_intdigest((asked.adapter or "").encode()) & _HALF_INT
        return tuple(block ^ own for block in asked.blocks)

    def draw(self, key: str) -> float:
        """Uniform in [0, 1), the same for the same request."""
        return crc32(key.encode()) / _DRAWS

    def heard(self, heartbeat: Heartbeat) -> None:
        room = self._rooms.get(PoolName(heartbeat.pool))
        if room is not None:
            room.heard(heartbeat)

    def forget(self, replica_id: ReplicaId) -> None:
        for room in self._rooms.values():
            room.forget(replica_id)
