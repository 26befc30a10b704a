"""What gateways share: time, the engines, the books; asked of the `simulation` by whoever plays a gateway."""

from collections.abc import Callable, Mapping
from typing import Protocol

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.gateway.routing.load_client import LoadAnswer
from functions.simulator.events import Events
from functions.simulator.fleet.catalogue import SettingCatalogue
from functions.simulator.fleet.engine_room import EngineRoom
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.setting import Setting
from functions.simulator.fleet.signals import PoolFigures
from functions.simulator.fleet.steering import Steering
from functions.simulator.fleet.told_prefixes import ToldPrefixes
from functions.simulator.workload.asked import Asked


class World(Protocol):
    """Of all gateways."""

    setting: Setting
    catalogue: SettingCatalogue
    events: Events
    outcome: Outcome
    steering: Steering | None

    @property
    def engines(self) -> EngineRoom: ...

    @property
    def told(self) -> Mapping[PoolName, ToldPrefixes]:
        """By pool, where its policy goes by the engines' events."""

    def figures(self, pool: PoolName) -> PoolFigures: ...

    def over(self, asked: Asked) -> None:
        """Once for each that came."""

    def load_adapter(
        self, replica_id: ReplicaId, name: EngineName, wait_s: float, done: Callable[[LoadAnswer], None]
    ) -> None:
        """Ask the replica's agent; `done` is called once, within `wait_s`."""
