"""Whatever the order of events, every request has one outcome and leaves nothing behind.

A state machine plays engines, agents, clocks and clients at random against the real exchange, with a model in rollout
whose adapters are loaded and unloaded. After each step the counts must match the open requests. At the end nothing may
be left, and the rollout evidence must match the outcomes.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from functions.api.ids import TenantId
from functions.decisions.rollout.evidence import GroupStats
from functions.gateway.request.exchange import RequestExchange
from functions.gateway.routing.load_client import LoadState
from tests.gateway import sse
from tests.gateway.engine_rig import Client, Engine, Play
from tests.gateway.loader_rig import PlayedLoader
from tests.gateway.rig import BOT_V1, BOT_V2, ROLLOUT, heartbeat, in_rollout, limits

T = TypeVar("T")
LIMITS = limits(
    answer_s=50.0, first_byte_s=10.0, idle_s=5.0, write_stall_s=5.0, cold_pause_s=0.0, quarantine_after_replicas=0
)

PIECES = st.sampled_from(
    [
        sse.role(BOT_V1),
        sse.token(BOT_V1, "x"),
        sse.finish(BOT_V1),
        sse.finish(BOT_V1, "abort"),
        sse.usage(BOT_V1),
        sse.DONE,
        sse.error(500),
        sse.error(400),
        b"data: half",
    ]
)


class ExchangeMachine(RuleBasedStateMachine):
    requests: Bundle[tuple[RequestExchange, Client]] = Bundle("requests")

    @initialize()
    def start_play(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.play = self._run(self._make_play())
        self.asked: list[tuple[RequestExchange, Client]] = []
        self.beats = 1
        self.adapters: dict[str, tuple[str, ...]] = {}

    async def _make_play(self) -> Play:
        self.loader = PlayedLoader()
        return Play("r0", "r1", limits=LIMITS, loader=self.loader, **in_rollout())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def _do(self, *acts: Callable[[], object]) -> None:
        """Act on the loop as transports would, then process what follows."""

        async def do() -> None:
            for act in acts:
                act()
            await self.play.settle()

        self._run(do())

    def _engine(self, number: int) -> Engine | None:
        alive = [engine for engine in self.play.engines if not engine.transport.closing]
        return alive[number % len(alive)] if alive else None

    @rule(
        target=requests,
        stream=st.booleans(),
        deadline_ms=st.sampled_from(["3000", "20000"]),
        session=st.sampled_from(["a", "b", "c", "d"]),
    )
    def send_request(self, stream: bool, deadline_ms: str, session: str) -> tuple[RequestExchange, Client]:
        names = {"x_shoal_deadline_ms": deadline_ms, "x_session_id": session, "x_request_id": f"r{len(self.asked)}"}
        more = {f"header_{name}": value for name, value in names.items()}
        self._do(lambda: self.play.ask(stream=stream, **more))
        assert self.play.exchange is not None
        self.asked.append((self.play.exchange, self.play.client))
        return self.asked[-1]

    @precondition(lambda self: self.loader.calls)
    @rule(state=st.sampled_from(get_args(LoadState)))
    def agent_answers(self, state: LoadState) -> None:
        self._do(partial(self.loader.calls.popleft().answers, state))

    @precondition(lambda self: self.play.dials)
    @rule(works=st.booleans(), dying=st.booleans())
    def dial_ends(self, works: bool, dying: bool) -> None:
        self.play.born_dying = dying
        self._run(self._dialled(works))

    async def _dialled(self, works: bool) -> None:
        await (self.play.connects() if works else self.play.refuses_connection())

    @rule(number=st.integers(0, 5), pieces=st.lists(PIECES, max_size=4), ends=st.booleans())
    def streams(self, number: int, pieces: list[bytes], ends: bool) -> None:
        engine = self._engine(number)
        if engine is None:
            return
        begin = [] if engine.connection._head_seen else [engine.begins_stream]
        parts = [partial(engine.streams, piece) for piece in pieces]
        self._do(*begin, *parts, *([engine.ends_stream] if ends else []))

    @rule(number=st.integers(0, 5), status=st.sampled_from([200, 400, 404, 500, 503]), abort=st.booleans())
    def answers(self, number: int, status: int, abort: bool) -> None:
        engine = self._engine(number)
        if engine is not None:
            body = sse.whole(BOT_V1, "x", "abort" if abort else "stop", 0 if abort else 1)
            self._do(partial(engine.answers, status, body))

    @rule(number=st.integers(0, 5), noise=st.sampled_from([b"\r\n", b"garbage", b"HTTP/1.1 100 C\r\n\r\n"]))
    def says_something_odd(self, number: int, noise: bytes) -> None:
        engine = self._engine(number)
        if engine is not None:
            self._do(partial(engine.sends, noise))

    @rule(number=st.integers(0, 5))
    def dies(self, number: int) -> None:
        engine = self._engine(number)
        if engine is not None:
            self._do(engine.dies)

    @rule(request=consumes(requests))
    def client_leaves(self, request: tuple[RequestExchange, Client]) -> None:
        self._do(request[0].client_left)

    @rule(request=requests, stops=st.booleans())
    def client_stops_or_reads_on(self, request: tuple[RequestExchange, Client], stops: bool) -> None:
        if not request[0].ended:
            self._do(request[0].pause if stops else request[0].resume)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.5, 12.0]))
    def time_passes(self, seconds: float) -> None:
        beats = [partial(self._beat, replica, "ready") for replica in ("r0", "r1")]
        self._do(partial(self.play.rig.clock.forward, seconds), *beats, self.play.gateway.sweep)

    @rule(
        replica=st.sampled_from(["r0", "r1"]),
        phase=st.sampled_from(["dead", "hung", "draining", "ready", "ready"]),
        adapters=st.sampled_from([(), (BOT_V1,), (BOT_V1, BOT_V2)]),
    )
    def fleet_says(self, replica: str, phase: str, adapters: tuple[str, ...]) -> None:
        self.adapters[replica] = adapters
        self._do(partial(self._beat, replica, phase))

    def _beat(self, replica: str, phase: str) -> None:
        self.beats += 1
        held = self.adapters.get(replica, (BOT_V1, BOT_V2))
        beat = heartbeat(replica, sequence=self.beats, phase=phase, adapters=held, peer_port=9, adapter_room=1)
        self.play.gateway.receive_heartbeat(beat)

    @invariant()
    def what_is_counted_is_what_is_open(self) -> None:
        open_now = [exchange for exchange, _ in self.asked if not exchange.ended]
        assert len(self.play.gateway.services.open_requests) == len(open_now)
        waiting = sum(exchange.cold is not None and exchange.cold.waiting for exchange in open_now)
        assert (
            self.play.gateway.services.adapter_loads is not None
            and self.play.gateway.services.adapter_loads.waiting == waiting
        )
        second = sum(exchange.tries.second is not None for exchange in open_now)
        in_flight = sum(self.play.gateway.services.router.load.in_flight.values())
        assert in_flight == len(open_now) - waiting + second
        assert self.play.gateway.services.quotas.in_flight(TenantId("acme")) == len(open_now)
        for exchange, client in self.asked:
            if client.ended:
                assert exchange.ended, "an answer that is whole has an outcome"
            if client.status == 200 and client.ended and exchange.admitted.stream:
                assert client.body.count(sse.DONE) + client.body.count(b'data: {"error"') == 1, "one end"

    def teardown(self) -> None:
        if not hasattr(self, "play"):
            return

        self._do(partial(self.play.rig.clock.forward, 60.0), self.play.gateway.sweep)
        assert self.play.quiet(), "past every deadline nothing is left"
        outcomes = [
            sample.value
            for family in self.play.gateway.services.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "shoal_requests_total"
        ]
        assert sum(outcomes) == len(self.asked), "exactly one outcome each"
        self._evidence_is_the_outcomes()
        for exchange, client in self.asked:
            left = exchange.timeline.ended_s > 0 and not client.ended
            assert client.ended or left
        for _, answer in self.play.dials:
            answer.cancel()
        self._run(self.play.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def _evidence_is_the_outcomes(self) -> None:
        candidate, control = self.play.gateway.services.rollouts.evidence.stats(ROLLOUT, 0) or (
            GroupStats(),
            GroupStats(),
        )
        fell_back = sum(exchange.admitted.split.fell_back for exchange, _ in self.asked if exchange.admitted.split)
        answered = self.play.requests(200)
        assert candidate.total_ms.count + control.total_ms.count == answered
        failed = candidate.errors + control.errors - fell_back
        assert candidate.requests + control.requests == answered + failed + fell_back
        ended_badly = sum(self.play.requests(code) for code in (500, 502, 503, 504))
        assert 0 <= failed <= ended_badly


TestExchangeMachine = ExchangeMachine.TestCase
TestExchangeMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
