"""What all of a gateway's batches share."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from functions.gateway.batch.files.shelf import Shelf
from functions.gateway.batch.files.store import FileStore
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.batch.log import BatchLog
from functions.gateway.batch.metrics import BatchMetrics
from functions.gateway.services import RequestHandler, Services
from functions.gateway.tenant_limits import TenantShares


@dataclass(frozen=True, slots=True)
class BatchServices:
    services: Services
    handle: RequestHandler  # of the requests that lines are
    limits: BatchLimits
    store: FileStore
    shelf: Shelf
    log: BatchLog
    slots: TenantShares  # lines in flight
    bodies: TenantShares  # bytes of lines that wait for their answer
    answers: TenantShares  # bytes that those in flight may get
    metrics: BatchMetrics
    dice: Callable[[], float]  # in [0, 1)
    open_batches: Counter[str] = field(default_factory=Counter)  # of each tenant, at all gateways: at the last look
