"""The exchange machine with more ways for requests: three pools, a cascade, fallbacks, hedges and full engines.

The invariants are the same: each request is in exactly one place, ends once and is settled once, and the engines' work
for it is counted.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import consumes, initialize, invariant, precondition, rule

from functions.api.ids import EngineName, PoolName, TenantId
from functions.api.snapshot import CascadeEntry, FallbackEntry
from functions.gateway import errors
from functions.gateway.request.exchange import RequestExchange
from tests.gateway import sse
from tests.gateway.detours import LARGE, SURE, THIRD, UNSURE, pools, scored
from tests.gateway.engine_rig import Client, Engine, Play
from tests.gateway.loader_rig import PlayedLoader
from tests.gateway.rig import BOT_V1, BOT_V2, POOL, catalogue, heartbeat, in_rollout, routing
from tests.gateway.test_exchange_machine import LIMITS, ExchangeMachine

STEPS = tuple(
    FallbackEntry(when, source, target)
    for when in ("saturated", "unavailable")
    for source, target in ((POOL, LARGE), (LARGE, THIRD), (THIRD, POOL))
)
POLICY = routing(
    fallback=STEPS,
    cascade=(CascadeEntry(POOL, LARGE, threshold_nats=0.5, sample_tokens=2, tiers=("enterprise",)),),
    hedge_after_s=0.5,
)
REPLICAS = {"r0": POOL, "r1": POOL, "big0": LARGE, "big1": LARGE, "huge0": THIRD}
BROKEN = b'data: {"logprobs":{ broken}\n\n'
X, Y = sse.token(BOT_V1, "x"), sse.token(BOT_V1, "y")  # events without log probabilities
WHOLE = sse.finish(BOT_V1) + sse.usage(BOT_V1) + sse.DONE
SCRIPTS = st.sampled_from(
    [
        sse.role(BOT_V1),
        scored("x", *SURE),
        scored("y", *UNSURE),
        scored("x", *SURE) * 2,
        scored("y", *UNSURE) * 2,
        WHOLE,
        scored("x", *SURE) + WHOLE,
        scored("y", *UNSURE) + WHOLE,
        scored("y", *UNSURE) * 2 + sse.error(500),
        sse.error(400),
        BROKEN,
    ]
)


def sections() -> dict[str, Any]:
    models = {model.id: model for model in (*pools()["models"], *in_rollout()["models"])}
    return pools(routing=(POLICY,)) | {"models": tuple(models[name] for name in sorted(models))}


class DetourMachine(ExchangeMachine):
    @initialize()
    def start_play(self) -> None:
        super().start_play()
        self.epoch = 1
        for name in REPLICAS:
            self._do(partial(self._beat, name, "ready"))

    async def _make_play(self) -> Play:
        self.loader = PlayedLoader()
        self.waiting: dict[str, int] = {}
        self.dials_hang = False
        return Play("r0", "r1", limits=LIMITS, loader=self.loader, **sections())

    def _engine(self, number: int) -> Engine | None:
        """Return an engine that has a request: the machine is about these."""
        asked = [engine for engine in self.play.engines if engine.connection._answer is not None]
        return asked[number % len(asked)] if asked else None

    def _do(self, *acts: Callable[[], object]) -> None:
        """Most engines accept connections at once."""
        super()._do(*acts)
        while self.play.dials and not self.dials_hang:
            self._run(self._dialled(True))

    @rule(hang=st.booleans())
    def network_is_slow_or_well(self, hang: bool) -> None:
        self.dials_hang = hang
        self._do()

    @rule(number=st.integers(0, 5), script=SCRIPTS, more=st.sampled_from([b"", WHOLE]))
    def streams_at_once(self, number: int, script: bytes, more: bytes) -> None:
        engine = self._engine(number)
        if engine is None:
            return
        begin = [] if engine.connection._head_seen else [engine.begins_stream]
        if not engine.requests[-1].get("logprobs"):
            script = script.replace(scored("x", *SURE), X).replace(scored("y", *UNSURE), Y).replace(BROKEN, X)
        self._do(*begin, partial(engine.streams, script + more), *([engine.ends_stream] if more else []))

    @rule(number=st.integers(0, 5), sure=st.booleans())
    def answers_whole(self, number: int, sure: bool) -> None:
        engine = self._engine(number)
        if engine is not None:
            answer = orjson.loads(sse.whole(BOT_V1))
            tops = [{"logprob": one} for one in (SURE if sure else UNSURE)]
            if engine.requests[-1].get("logprobs"):
                answer["choices"][0]["logprobs"] = {"content": [{"top_logprobs": tops}]}
            self._do(partial(engine.answers, 200, orjson.dumps(answer)))

    @rule(target=ExchangeMachine.requests, model=st.sampled_from([str(POOL), str(LARGE)]))
    def ask_a_base(self, model: str) -> tuple[RequestExchange, Client]:
        assert self.play.gateway.services.state.catalogue is not None
        there = model if model in self.play.gateway.services.state.catalogue.pools else str(POOL)
        self._do(lambda: self.play.ask(there, header_x_request_id=f"r{len(self.asked)}"))
        assert self.play.exchange is not None
        self.asked.append((self.play.exchange, self.play.client))
        return self.asked[-1]

    @rule(number=st.integers(0, 5), status=st.sampled_from([429, 503]), after=st.sampled_from(["", "3", "soon", "1e9"]))
    def is_full(self, number: int, status: int, after: str) -> None:
        engine = self._engine(number)
        if engine is not None:
            extra = f"retry-after: {after}\r\n" if after else ""
            self._do(partial(engine.answers, status, b"{}", extra=extra))

    @rule(
        replica=st.sampled_from(sorted(REPLICAS)),
        phase=st.sampled_from(["dead", "hung", "draining", "ready", "ready"]),
        waiting=st.sampled_from([0, 0, 9]),
    )
    def other_pools_say(self, replica: str, phase: str, waiting: int) -> None:
        self.waiting[replica] = waiting
        self._do(partial(self._beat, replica, phase))

    @rule(seconds=st.sampled_from([0.6, 2.5]))
    def a_little_time_passes(self, seconds: float) -> None:
        beats = [partial(self._beat, replica, "ready") for replica in REPLICAS]
        self._do(partial(self.play.rig.clock.forward, seconds), *beats, self.play.gateway.sweep)

    @rule(without=st.sampled_from([None, LARGE, THIRD]))
    def another_snapshot(self, without: PoolName | None) -> None:
        self.epoch += 1
        found = sections()
        if without is not None:
            found["pools"] = tuple(pool for pool in found["pools"] if pool.name != without)
            found["models"] = tuple(model for model in found["models"] if model.pool != without)
        self._do(partial(self.play.gateway.swap, catalogue(self.epoch, **found)))

    @precondition(lambda self: len(self.asked) > 3)
    @rule(request=consumes(ExchangeMachine.requests))
    def time_to_drain_is_over(self, request: tuple[RequestExchange, Client]) -> None:
        self._do(partial(request[0].cut_short, errors.restarting()))

    def _beat(self, replica: str, phase: str) -> None:
        self.beats += 1
        pool = REPLICAS[replica]
        held = self.adapters.get(replica, (BOT_V1, BOT_V2)) if pool == POOL else (EngineName("other"),)
        beat = heartbeat(
            replica, sequence=self.beats, phase=phase, adapters=held, pool=pool, peer_port=9, adapter_room=1,
            running=1, waiting=self.waiting.get(replica, 0),
        )  # fmt: skip
        self.play.gateway.receive_heartbeat(beat)

    @invariant()
    def what_is_counted_is_what_is_open(self) -> None:
        gateway = self.play.gateway
        open_now = [exchange for exchange, _ in self.asked if not exchange.ended]
        assert (
            len(gateway.services.open_requests) == len(open_now) == gateway.services.quotas.in_flight(TenantId("acme"))
        )
        cold = sum(exchange.cold is not None and exchange.cold.waiting for exchange in open_now)
        assert gateway.services.adapter_loads is not None and gateway.services.adapter_loads.waiting == cold
        tries = {exchange: [each for each in (exchange.tries.attempt, exchange.tries.second) if each and not each.over]
                 for exchange in open_now}  # fmt: skip
        assert sum(gateway.services.router.load.in_flight.values()) == sum(map(len, tries.values()))
        working = sum(bool(under_way) for under_way in tries.values())
        assert working + cold + gateway.services.admission.waiting == len(open_now), (
            "each in one place, and none forgotten"
        )
        assert {each for each in gateway.services.open_requests if each.ticket is not None} == set(open_now)
        for exchange, client in self.asked:
            assert not client.ended or exchange.ended, "an answer that is whole has an outcome"
            assert len({attempt.replica.id for attempt in tries.get(exchange, ())}) == len(tries.get(exchange, ()))
            assert b"top_logprobs" not in client.body and b'"logprobs":{' not in client.body, "nobody asked for these"
            if client.status == 200 and client.ended and exchange.admitted.stream:
                assert client.body.count(sse.DONE) + client.body.count(b'data: {"error"') == 1, "one end"

    def _evidence_is_the_outcomes(self) -> None:
        """The other machine checks rollout evidence; here every request must be settled exactly once."""
        quotas = self.play.gateway.services.quotas
        assert quotas.settled_by_engine.requests + quotas.settled_by_count.requests == len(self.asked)
        admission = self.play.gateway.services.admission
        running = sum(pool_queue.admission.gate.running for pool_queue in admission._pool_queues.values())
        assert not running and not admission.waiting


TestDetourMachine = DetourMachine.TestCase
TestDetourMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
