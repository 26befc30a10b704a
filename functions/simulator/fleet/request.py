"""One request under way at a gateway."""

from typing import TYPE_CHECKING

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.admission.ticket import Ticket
from functions.decisions.routing.own_load import Place
from functions.decisions.routing.retry import Failure
from functions.simulator.fleet.fluid_engine import Work
from functions.simulator.workload.asked import Asked

if TYPE_CHECKING:
    from functions.simulator.fleet.gateway import Gateway
    from functions.simulator.fleet.tenant_limits import Held

NOBODY: frozenset[ReplicaId] = frozenset()


class Request:
    __slots__ = (
        "asked",
        "asked_pool",
        "attempt",
        "been",
        "begun_s",
        "blocks",
        "cold_waits",
        "computed_tokens",
        "expected_tokens",
        "failures",
        "first_s",
        "gateway",
        "held",
        "is_adapter",
        "is_for_room",
        "is_over",
        "model",
        "number",
        "place",
        "pool",
        "sent_s",
        "ticket",
        "tried",
        "work",
    )

    def __init__(self, asked: Asked, number: int, gateway: "Gateway", pool: PoolName, model: EngineName) -> None:
        self.asked = asked
        self.number = number
        self.gateway = gateway
        self.asked_pool = pool
        self.pool = pool  # where it is now
        self.model = model
        self.is_adapter = asked.adapter is not None
        self.blocks = asked.blocks  # an adapter's are none of its base's
        self.expected_tokens = 0
        self.ticket: Ticket | None = None
        self.place: Place | None = None
        self.work: Work | None = None  # in an engine
        self.begun_s = 0.0  # when it was dispatched
        self.sent_s = 0.0  # when its last attempt began
        self.first_s = 0.0  # when its first token came; 0: it has not
        self.attempt = 0
        self.tried: frozenset[ReplicaId] = NOBODY
        self.failures: tuple[Failure, ...] = ()
        self.been: tuple[PoolName, ...] = ()  # pools that could not answer it
        self.is_for_room = False  # its own pool was too full for it, when it left
        self.cold_waits = 0
        self.computed_tokens = asked.prompt_tokens  # of the prompt, once it is over: what no cache had
        self.held: Held | None = None  # of its tenant's limits
        self.is_over = False
