"""View of the fleet from the bus: what `GET /v1/fleet` shows.

The bus gone, or most replicas silent at once while it answers, the last view stays and ages: each replica's `age_s`
grows. Then `bus_connected` is false, and the controller takes nobody's silence for his end.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from functions.api.ids import ReplicaId
from functions.fleet import heartbeat as heartbeats
from functions.fleet.bus import Bus, BusUnavailable, NodeBus, PoolBus
from functions.fleet.heartbeat import Heartbeat, HeartbeatInvalid, Pulse
from functions.fleet.heartbeat_seals import SealChecker
from functions.fleet.pool_board import DesiredPool, GatewayNeeds, PoolBoard, PoolSum
from functions.fleet.verdicts import VERDICTS_FOR_S, Verdicts, notice_of
from functions.fleet.view import FleetView
from functions.fleet.zones import ZoneTable
from functions.telemetry.bus_link import BusLink

# What gateways tell of pools, kept for the controller; and the sizes that the controller desires, kept for Prometheus.


MAX_COLD_STARTS = 1024  # pools
DESIRED_FOR_S = 60.0  # a controller that is gone desires nothing any more


class PoolWatch:
    """Owned by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._board = PoolBoard()
        self._desired: tuple[DesiredPool, ...] = ()
        self._desired_s = float("-inf")

    async def follow(self, bus: PoolBus) -> None:
        """Until the bus is lost: BusUnavailable."""
        async for message in bus.pools():
            self.take(message)

    def take(self, message: bytes) -> None:
        self._board.take(message, self._clock())

    def sums(self) -> Mapping[str, PoolSum]:
        return self._board.sums(self._clock())

    def needs(self) -> GatewayNeeds:
        return self._board.needs(self._clock())

    def set_desired(self, desired: tuple[DesiredPool, ...]) -> None:
        self._desired, self._desired_s = desired, self._clock()

    def desired(self) -> tuple[DesiredPool, ...]:
        """Replicas that the controller desires of pools; nothing where it has not said so lately."""
        return self._desired if self._clock() - self._desired_s <= DESIRED_FOR_S else ()


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    heartbeat: Heartbeat
    age_s: float  # since its last heartbeat came
    suspected: str = ""  # with which node or zone: `node n1`, `zone c`


class FleetWatch:
    """Owned by one event loop."""

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic, seals: SealChecker | None = None) -> None:
        self._seals = seals
        self.link = BusLink(clock)
        self.refused_total = 0  # messages that were no heartbeats
        self._bus = bus
        self._clock = clock
        self._view = FleetView()
        self.pools = PoolWatch(clock)
        self.cold_starts: dict[str, Mapping[str, float]] = {}  # by pool, the last one's seconds by stage
        self.zones = ZoneTable()  # as the controller told it last
        self._verdicts, self._verdicts_s = Verdicts(), float("-inf")
        self.node_bus: NodeBus | None = None  # where gateways hear of nodes

    @property
    def bus_connected(self) -> bool:
        """Whether heartbeats can come, and do."""
        self._expire(self._clock())
        return self.link.is_up and not self._view.expiry.is_fleets

    def _expire(self, now_s: float) -> None:
        """Nobody here can ask a replica: who is silent with its pool alone is out, with most of the fleet is not."""
        self._view.expire(now_s)
        if not self._view.expiry.is_fleets:
            for replica_id in self._view.expiry.doubted:
                self._view.forget(replica_id)

    async def run(self) -> None:
        """Follow the bus until it is lost: BusUnavailable."""
        try:
            async for messages in self._bus.listen():
                for message in messages:
                    self.take(message)
                self.link.set(True)
        finally:
            self.link.set(False)

    def take(self, message: bytes) -> None:
        """One message from the bus: heartbeats and pulses, a line each."""
        try:
            for line in heartbeats.lines(message):
                self._take_line(line)
        except HeartbeatInvalid:
            self.refused_total += 1

    def _take_line(self, line: bytes) -> None:
        try:
            said = heartbeats.decode_line(line)
            if self._seals is not None:
                self._seals.check(line, said)
        except HeartbeatInvalid:
            self.refused_total += 1
            return
        completed = self._view.completed(said) if isinstance(said, Pulse) else (said, None)
        if completed is not None:
            self._view.fold(completed[0], self._clock(), completed[1])
            self._keep_cold_start(completed[0])

    def _keep_cold_start(self, heartbeat: Heartbeat) -> None:
        """Of a pool that is at zero meanwhile, too."""
        if heartbeat.cold_start and (heartbeat.pool in self.cold_starts or len(self.cold_starts) < MAX_COLD_STARTS):
            self.cold_starts[heartbeat.pool] = heartbeat.cold_start

    async def judged(self, verdicts: Verdicts) -> None:
        """What the controller says of replicas and nodes; in place of what it said before. Gateways are told of nodes;
        where the bus is away, they are when it is said again."""
        self._verdicts, self._verdicts_s = verdicts, self._clock()
        self._view.tell_nodes(verdicts.nodes, self._verdicts_s + VERDICTS_FOR_S)
        if self.node_bus is not None:
            with contextlib.suppress(BusUnavailable):
                await self.node_bus.publish_nodes(notice_of(verdicts))

    @property
    def verdicts(self) -> Verdicts:
        """Nothing, where the controller has not said so lately."""
        return self._verdicts if self._clock() - self._verdicts_s <= VERDICTS_FOR_S else Verdicts()

    def replicas(self) -> list[ReplicaSighting]:
        """Everyone who is not out, by id."""
        now_s = self._clock()
        self._expire(now_s)
        if self.link.is_up:
            self._view.suspect(now_s)
        suspected = {id_: " ".join(domain) for id_, domain in self._view.suspicions.replicas.items()}
        return [
            ReplicaSighting(heartbeat, max(0.0, now_s - seen_s), suspected.get(ReplicaId(heartbeat.replica_id), ""))
            for heartbeat, seen_s in self._view.heartbeats()
        ]
