"""What the gateways of a simulation share: time, the engines, the books.

Neighbours: `simulation` makes one; each `gateway` is given it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.gateway.routing.load_client import LoadAnswer
from functions.simulator.events import Events
from functions.simulator.fleet.catalogue import SettingCatalogue
from functions.simulator.fleet.engine_driver import EngineDriver
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.reported_prefixes import ReportedPrefixes
from functions.simulator.fleet.setting import Setting
from functions.simulator.fleet.signals import PoolFigures
from functions.simulator.fleet.steering import Steering
from functions.simulator.workload.request import WorkloadRequest

LoadAdapter = Callable[[ReplicaId, EngineName, float, Callable[[LoadAnswer], None]], None]


@dataclass(slots=True, kw_only=True)
class Context:
    setting: Setting
    catalogue: SettingCatalogue
    events: Events
    outcome: Outcome
    engines: EngineDriver
    told: Mapping[PoolName, ReportedPrefixes]
    """By pool, where its policy goes by the engines' events."""
    figures: Mapping[PoolName, PoolFigures]
    load_adapter: LoadAdapter
    """Ask the replica's agent for so many seconds at most; the last argument is called once, within them."""
    over: Callable[[WorkloadRequest], None]
    """Once for each that came."""
    steering: Steering | None = None
