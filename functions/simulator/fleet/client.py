"""One client of a simulated fleet: its request, and the answer as the client sees it.

The client is the sink of its request's exchange, so it counts first tokens, ends, rejections and broken streams. It
ends exactly once in every case.
"""

from typing import Protocol

from functions.api.ids import PoolName
from functions.decisions.admission.ticket import BANDS
from functions.decisions.autoscaling.signals import is_overflow
from functions.gateway.http.sink import Headers
from functions.gateway.request.exchange import RequestExchange
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.signals import Second
from functions.simulator.workload.request import WorkloadRequest

_BATCH = BANDS.index("batch")
_OVER_QUOTA = 429
_COMMENT = b":"  # start of a comment in a stream of events


class Frontend(Protocol):
    """The part of a gateway that a client uses."""

    outcome: Outcome
    stopping: str  # reason if the gateway is stopping; its requests are lost for this reason

    @property
    def now_s(self) -> float: ...

    def figures(self, pool: PoolName) -> Second: ...

    def pop_shed_reason(self) -> str:
        """Return and clear the shoal_shed_total label of the last rejection; "" if there is none."""

    def first_token(self, client: "Client") -> None: ...

    def over(self, client: "Client") -> None: ...


class Client:
    __slots__ = (
        "_adapters_blocks",
        "_gateway",
        "exchange",
        "first_s",
        "home",
        "is_over",
        "key",
        "pool",
        "request",
        "steered",
    )

    def __init__(
        self, gateway: Frontend, key: str, request: WorkloadRequest, pool: PoolName, blocks: tuple[int, ...]
    ) -> None:
        """`blocks`: names of the prompt's blocks in its adapter's cache."""
        self._gateway = gateway
        self._adapters_blocks = blocks
        self.key = key
        self.request = request
        self.pool = pool  # requested: the pool that has the model's name
        self.home = pool  # where placement rules send it; a controller counts it there
        self.steered = False  # True if it was moved to another pool before admission
        self.exchange: RequestExchange | None = None
        self.first_s = 0.0  # time of its first token; 0: none yet
        self.is_over = False

    def blocks_for(self, *, is_adapter: bool) -> tuple[int, ...]:
        """Return the names under which an engine caches the prompt's blocks: its adapter's with `is_adapter`, else the
        base's."""
        return self._adapters_blocks if is_adapter else self.request.blocks

    @property
    def serving_pool(self) -> PoolName:
        """Pool that handles the request now; before admission, the pool that it requested."""
        return self.exchange.admitted.model.pool if self.exchange is not None else self.pool

    # Methods of the exchange's sink.

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        """Count the first token, unless `first` is a comment: then the request still waits for a pool to start."""
        if not first.startswith(_COMMENT):
            self._first_token()

    def more(self, data: bytes) -> None:
        """Count the first token if it comes only now; the engine model counts later ones."""
        if not self.first_s and not data.startswith(_COMMENT):
            self._first_token()

    def _first_token(self) -> None:
        gateway, request, exchange = self._gateway, self.request, self.exchange
        self.first_s = gateway.now_s
        ttft_s = self.first_s - request.at_s
        band = gateway.outcome.band(self.pool, request.band)
        band.began(ttft_s, exchange.timeline.queued_s if exchange is not None else 0.0)
        gateway.outcome.pools[self.serving_pool].answering[request.band].add(ttft_s * 1000)
        gateway.figures(self.serving_pool).ttft.add(ttft_s * 1000)
        band.degraded += self.is_degraded
        if self._has_moved:
            gateway.figures(self.home).degraded += 1
        gateway.first_token(self)

    def end(self, last: bytes) -> None:
        """End the request and count it as answered, lost or, without a first token, unanswered. `last` is the reason if
        its stream broke, else empty."""
        if last and not self.first_s:
            self._unanswered(self._gateway.pop_shed_reason() or last.decode())
            return
        if last:
            self._lost(last.decode())
            return
        gateway, request = self._gateway, self.request
        gateway.outcome.pools[self.serving_pool].answered_tokens += request.prompt_tokens + request.output_tokens
        if request.output_tokens > 1:
            gap_s = (gateway.now_s - self.first_s) / (request.output_tokens - 1)
            gateway.outcome.band(self.pool, request.band).answer_gaps.add(gap_s * 1000)
        self._over()

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Count a request that was rejected or failed before its first token."""
        reason = "over_quota" if status == _OVER_QUOTA else self._gateway.pop_shed_reason() or body.decode()
        self._unanswered(reason)

    def _unanswered(self, reason: str) -> None:
        if self._gateway.stopping or (self.exchange is not None and self.exchange.tries.failures):
            self._lost(reason)
        else:
            self.refused(reason)

    def cut(self) -> None:
        self._lost("cut")

    # Endings of a request.

    def refused(self, reason: str) -> None:
        band, figures = self.request.band, self._gateway.figures(self.home)
        self._gateway.outcome.band(self.pool, band).shed[reason] += 1
        figures.shed += 1
        figures.overflow += is_overflow(self._why_it_left() or reason, is_batch=band == _BATCH)
        self._over()

    def _lost(self, reason: str) -> None:
        reason = self._gateway.stopping or reason
        band = self._gateway.outcome.band(self.pool, self.request.band)
        if self.first_s:
            band.broke(self.first_s - self.request.at_s, reason)
        else:
            band.lost[reason] += 1
        self._over()

    @property
    def is_degraded(self) -> bool:
        plan = self.exchange.plan if self.exchange is not None else None
        return self.steered or (plan is not None and plan.degraded is not None and not plan.degraded.is_same_model)

    @property
    def _has_moved(self) -> bool:
        """True if another pool than the placed one answers, even if it has the same model."""
        plan = self.exchange.plan if self.exchange is not None else None
        return self.steered or (plan is not None and plan.degraded is not None)

    def _why_it_left(self) -> str:
        """Return the shoal_shed_total label of its plan for leaving its own pool, or "" if the plan did not move it."""
        plan = self.exchange.plan if self.exchange is not None else None
        return plan.degraded.why if plan is not None and plan.degraded is not None else ""

    def _over(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self.exchange is not None and self.exchange.timeline.load_s > 0.0:
            self._gateway.outcome.band(self.pool, self.request.band).cold_starts += 1
        if self.exchange is not None and self.exchange.timeline.wake_s > 0.0:
            self._gateway.outcome.band(self.pool, self.request.band).woke += 1
        self.exchange = None  # avoids a reference cycle, which only the collector would free
        self._gateway.over(self)
