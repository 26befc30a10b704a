"""What all of a gateway's batches share."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from functions.gateway.batches.limits import BatchLimits
from functions.gateway.batches.log import BatchLog
from functions.gateway.batches.metrics import BatchMetrics
from functions.gateway.batches.places import HeldBytes, LinePlaces
from functions.gateway.core import Gateway
from functions.gateway.files.shelf import Shelf
from functions.gateway.files.store import FileStore


@dataclass(frozen=True, slots=True)
class Shared:
    gateway: Gateway
    limits: BatchLimits
    store: FileStore
    shelf: Shelf
    log: BatchLog
    places: LinePlaces
    bodies: HeldBytes  # of lines that wait for their answer
    answers: HeldBytes  # room for those in flight
    metrics: BatchMetrics
    dice: Callable[[], float]  # in [0, 1)
    open_batches: Counter[str] = field(default_factory=Counter)  # of each tenant, at all gateways: at the last look
