"""A request in three records: as it was admitted, when it passed each step, and how it ended.

    Admitted    what intake found it to be; never changed, a request for another pool or version is another `Admitted`
    Timeline    when it passed each step; written as it goes
    Ended       how it ended and what it used: made once, by its exchange, and given to each listener in turn

All that happens at a request's end reads `Ended` and nothing of the exchange: the fleet's view, admission, the tenant's
account, metrics, a rollout's evidence, the trace (`functions.gateway.assembly` has their order).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from functions.api.ids import PoolName
from functions.api.snapshot import RoutingEntry, ServiceClass
from functions.decisions.admission.ticket import Ticket
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.request.access import Caller
from functions.decisions.request.features import RequestFeatures
from functions.decisions.routing.choice import Prediction, RouteRequest
from functions.decisions.routing.retry import Failure
from functions.gateway.http.headers import NO_TRACE, TraceContext
from functions.gateway.intake.routes import Route
from functions.gateway.quota.accounts import RequestQuota
from functions.gateway.request.answers import Usage
from functions.gateway.routing.splits import SplitUse
from functions.telemetry.gap_histogram import GapCounts, Gaps


class Admitted(msgspec.Struct, frozen=True):
    """A request that may be routed; all that it needs of its snapshot."""

    request_id: str
    caller: Caller
    route: Route
    model: ResolvedModel
    routing: RoutingEntry
    service_class: ServiceClass
    stream: bool
    include_usage: bool  # the caller asked for the usage event of a stream
    deadline_ms: int | None
    features: RequestFeatures
    upstream_body: bytes
    split: SplitUse | None = None  # its place in a rollout of the channel that it asked for
    session: str | None = None  # what it belongs to, as the caller named it
    conversation: bytes | None = None  # its session's hash, or of how its chat begins; None: nothing names it
    is_first_turn: bool = True  # of the conversation, as far as the request shows
    former_tokens: int | None = None  # of the prompt, that the conversation's last turn has had; None: not known
    trace: TraceContext = NO_TRACE
    slid_turns: int = 0  # of the oldest, dropped so that the rest fits the context window
    continuous_usage: bool = False  # the caller asked for the usage so far with every event
    ignored_fields: tuple[str, ...] = ()  # of the body, that nobody knows and no engine was sent

    def let_go_of_body(self) -> None:
        """Nobody will send it again. The one change that is ever made: a copy would keep the body for other holders."""
        msgspec.structs.force_setattr(self, "upstream_body", b"")

    def route_request(self) -> RouteRequest:
        return RouteRequest(
            engine_name=self.model.engine_name,
            is_adapter=self.model.is_adapter,
            prompt_tokens=self.features.prompt_tokens,
            tie_key=self.request_id,
            tenant=self.caller.tenant,
            weights=self.model.weights,
        )


@dataclass(slots=True)
class Timeline:
    """Monotonic seconds; 0 where it never came to that step."""

    received_s: float
    admitted_s: float = 0.0
    routed_s: float = 0.0
    connected_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    queued_s: float = 0.0  # of the time to routing: in the admission queue
    paused_s: float = 0.0  # of the time since the first token: the client did not read
    load_s: float = 0.0  # of the time to routing: the wait for an adapter that no replica had loaded
    wake_s: float = 0.0  # of the time to routing: the wait for the first replica of a pool at zero

    def server_timing(self) -> bytes:
        """The `server-timing` header, milliseconds; `load` and `wake` where an adapter or a pool was waited for."""
        auth_s = self.admitted_s - self.received_s
        route_s = self.routed_s - self.wake_s - self.load_s - self.queued_s - self.admitted_s
        connect_s = self.connected_s - self.routed_s
        ttft_s = self.first_token_s - self.received_s
        timing = b"auth;dur=%.2f, queue;dur=%.2f, route;dur=%.2f, connect;dur=%.2f, ttft;dur=%.2f" % (
            auth_s * 1000 if auth_s > 0.0 else 0.0,
            self.queued_s * 1000,
            route_s * 1000 if route_s > 0.0 else 0.0,
            connect_s * 1000 if connect_s > 0.0 else 0.0,
            ttft_s * 1000 if ttft_s > 0.0 else 0.0,
        )
        if self.wake_s:
            timing += b", wake;dur=%.2f" % (self.wake_s * 1000)
        return timing + b", load;dur=%.2f" % (self.load_s * 1000) if self.load_s else timing


class Spent(NamedTuple):
    """Of a replica."""

    kv_token_seconds: float
    gpu_seconds: float


NOTHING_SPENT = Spent(0.0, 0.0)


class CascadeSpend(NamedTuple):
    """A small model's answer that was paid for, and that nobody got."""

    model: ResolvedModel  # the small one
    usage: Usage
    spent: Spent
    attempt: object  # that gave it


class PrefillSpend(NamedTuple):
    """What a prefill pool's replica has done for an answer that another pool's gave."""

    model: ResolvedModel  # in the prefill pool
    spent: Spent


class CascadeOutcome(NamedTuple):
    """What became of a small model's answer; the first three are metric labels."""

    source: PoolName
    target: PoolName
    verdict: str
    notes: dict[str, Any]  # for the trace


class Ended(msgspec.Struct, frozen=True):
    """A request that has ended, and its last attempt with it."""

    admitted: Admitted
    timeline: Timeline
    snapshot_epoch: int
    status: int
    code: str  # of the error that it ended with, or empty
    gave_up: bool  # its caller's own deadline passed, and no clock of the platform's
    begun: bool  # the client has the beginning of a stream
    ticket: Ticket | None  # in the admission queue, or among those dispatched
    entry: RequestQuota  # its reservation of the tenant's limits
    attempts: int
    failures: tuple[Failure, ...]
    fingerprint: Callable[[], bytes]  # of its prompt, as the quarantine knows it

    # what it used
    usage: Usage | None
    delivered_tokens: int
    spent: Spent  # the small model's part included
    worked: bool  # an engine has worked for the answer
    cost_tokens: int | None  # what fairness charges; None: as much as was expected
    cascade_spend: CascadeSpend | None

    # its last attempt
    prediction: Prediction | None  # None: there was none
    sent_s: float
    gaps: Gaps | None  # between pieces, as they came
    token_gaps: GapCounts  # between tokens; without those in which the client did not read
    events: int  # of the stream, with choices
    tokens: int  # of these, about: as the engine told with its events, or the fewest that there may be
    last: tuple[bytes, ...]  # what the engine said last, at most a few KB

    # how it came where it was answered
    cascade: CascadeOutcome | None
    degraded_from: str  # the model that was asked for, where another pool was asked instead
    prefill: PrefillSpend | None = None  # where another pool's replica has computed the prompt; part of `spent`
    split: dict[str, Any] | None = None  # for the trace; None: its pool has no prefill pool


EndListener = Callable[[Ended], None]
