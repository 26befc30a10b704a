"""View of the fleet from the bus, as `GET /v1/fleet` shows it.

If the bus is lost, or most replicas fall silent together while the bus answers, the last view stays and `age_s` of
each replica grows. `bus_connected` is then false, and the controller does not treat silent replicas as gone.
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

# Pool reports of gateways, for the controller, and the sizes that the controller desires, for Prometheus.


MAX_COLD_STARTS = 1024  # pools
DESIRED_FOR_S = 60.0  # sizes desired by a controller that has stopped expire


class PoolReportWatch:
    """Pool reports of gateways and desired pool sizes. Owned by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._board = PoolBoard()
        self._desired: tuple[DesiredPool, ...] = ()
        self._desired_s = float("-inf")

    async def follow(self, bus: PoolBus) -> None:
        """Receive pool reports until the bus is lost. Raises BusUnavailable."""
        async for message in bus.pools():
            self.receive_message(message)

    def receive_message(self, message: bytes) -> None:
        self._board.receive_message(message, self._clock())

    def sums(self) -> Mapping[str, PoolSum]:
        return self._board.sums(self._clock())

    def needs(self) -> GatewayNeeds:
        return self._board.needs(self._clock())

    def set_desired(self, desired: tuple[DesiredPool, ...]) -> None:
        self._desired, self._desired_s = desired, self._clock()

    def desired(self) -> tuple[DesiredPool, ...]:
        """Return the desired replicas of pools as the controller last sent them; empty if that was more than
        DESIRED_FOR_S ago."""
        return self._desired if self._clock() - self._desired_s <= DESIRED_FOR_S else ()


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    heartbeat: Heartbeat
    age_s: float  # since its last heartbeat
    suspected: str = ""  # the node or zone that is suspected: `node n1`, `zone c`


class FleetWatch:
    """Replicas, pools and verdicts of the fleet. Owned by one event loop."""

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.monotonic, seals: SealChecker | None = None) -> None:
        self._seals = seals
        self.link = BusLink(clock)
        self.refused_total = 0  # messages and lines that were not valid heartbeats
        self._bus = bus
        self._clock = clock
        self._view = FleetView()
        self.pools = PoolReportWatch(clock)
        self.cold_starts: dict[str, Mapping[str, float]] = {}  # by pool: the last cold start's seconds by stage
        self.zones = ZoneTable()  # the controller's last table
        self._verdicts, self._verdicts_s = Verdicts(), float("-inf")
        self.node_bus: NodeBus | None = None  # publishes nodes that are not ready, for gateways

    @property
    def bus_connected(self) -> bool:
        """True if the bus is connected and most of the fleet's heartbeats arrive. Silent replicas are removed first."""
        self._expire(self._clock())
        return self.link.is_up and not self._view.expiry.is_fleets

    def _expire(self, now_s: float) -> None:
        """Remove silent replicas, unless most of the fleet is silent. The registry cannot probe engines."""
        self._view.expire(now_s)
        if not self._view.expiry.is_fleets:
            for replica_id in self._view.expiry.doubted:
                self._view.forget(replica_id)

    async def run(self) -> None:
        """Process heartbeats from the bus until it is lost. Raises BusUnavailable."""
        try:
            async for messages in self._bus.listen():
                for message in messages:
                    self.receive_message(message)
                self.link.set(True)
        finally:
            self.link.set(False)

    def receive_message(self, message: bytes) -> None:
        """Process one message of the bus: heartbeats and pulses, one per line. Invalid ones are counted, not raised."""
        try:
            for line in heartbeats.lines(message):
                self._receive_line(line)
        except HeartbeatInvalid:
            self.refused_total += 1

    def _receive_line(self, line: bytes) -> None:
        try:
            said = heartbeats.decode_line(line)
            if self._seals is not None:
                self._seals.check(line, said)
        except HeartbeatInvalid:
            self.refused_total += 1
            return
        completed = self._view.complete_pulse(said) if isinstance(said, Pulse) else (said, None)
        if completed is not None:
            self._view.fold(completed[0], self._clock(), completed[1])
            self._record_cold_start(completed[0])

    def _record_cold_start(self, heartbeat: Heartbeat) -> None:
        """Record the cold start in the heartbeat, if any, as the pool's last one. It stays if the pool is scaled to
        zero. Only MAX_COLD_STARTS pools are recorded."""
        if heartbeat.cold_start and (heartbeat.pool in self.cold_starts or len(self.cold_starts) < MAX_COLD_STARTS):
            self.cold_starts[heartbeat.pool] = heartbeat.cold_start

    async def set_verdicts(self, verdicts: Verdicts) -> None:
        """Replace the controller's verdicts and publish the nodes among them to gateways. If the bus is unavailable,
        gateways receive the nodes with the next verdicts."""
        self._verdicts, self._verdicts_s = verdicts, self._clock()
        self._view.set_troubled_nodes(verdicts.nodes, self._verdicts_s + VERDICTS_FOR_S)
        if self.node_bus is not None:
            with contextlib.suppress(BusUnavailable):
                await self.node_bus.publish_nodes(notice_of(verdicts))

    @property
    def verdicts(self) -> Verdicts:
        """The controller's verdicts; empty if they are older than VERDICTS_FOR_S."""
        return self._verdicts if self._clock() - self._verdicts_s <= VERDICTS_FOR_S else Verdicts()

    def replicas(self) -> list[ReplicaSighting]:
        """Return all replicas that have not expired, by id, each with its last heartbeat, that one's age, and the
        silent node or zone for which it is suspected ("" if it is not)."""
        now_s = self._clock()
        self._expire(now_s)
        if self.link.is_up:
            self._view.update_suspicions(now_s)
        suspected = {id_: " ".join(domain) for id_, domain in self._view.suspicions.replicas.items()}
        return [
            ReplicaSighting(heartbeat, max(0.0, now_s - seen_s), suspected.get(ReplicaId(heartbeat.replica_id), ""))
            for heartbeat, seen_s in self._view.heartbeats()
        ]
