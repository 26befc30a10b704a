"""Parts of one simulated engine, built once in `server` and used by the routes."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from functions.engines.sim.accept import Acceptor
from functions.engines.sim.faults import FaultBox
from functions.engines.sim.kv_transfer import KvTransfers
from functions.engines.sim.lifecycle import Lifecycle
from functions.engines.sim.live import Clock, LiveEngine
from functions.engines.sim.model import AdapterTable, SimulatedModel
from functions.engines.sim.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    settings: Settings
    model: SimulatedModel
    adapters: AdapterTable
    engine: LiveEngine
    acceptor: Acceptor
    faults: FaultBox
    clock: Clock
    registry: CollectorRegistry
    fingerprint: str
    kv_transfers: KvTransfers
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
