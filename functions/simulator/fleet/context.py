"""Objects that all gateways of a simulation share: time, engines, outcome and figures.

`simulation` makes one and passes it to each `gateway`.
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
    """Prefixes reported by engine events, for pools whose routing policy uses them."""
    figures: Mapping[PoolName, PoolFigures]
    load_adapter: LoadAdapter
    """Request a load from the replica's agent, for at most so many seconds; the callback is called once in that time.
    """
    over: Callable[[WorkloadRequest], None]
    """Called once when a request is over."""
    steering: Steering | None = None
