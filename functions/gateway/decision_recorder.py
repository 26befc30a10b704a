"""A gateway's decisions with all that went into them, as JSON lines: off unless SHOAL_GATEWAY_DECISIONS_FILE is set.

    {"e": "begin", "zone": …, "router": …}
    {"e": "beat", "t": …, "beat": {…}}                 what was heard of a replica
    {"e": "policy", "pool": …, "routing": …, "admission": …}
    {"e": "come", "id": …, "pool": …, …}               a request, as admission and routing see it
    {"e": "route", "id": …, "replica": …, "reason": …, "cached": {…}}
    {"e": "waits", "id": …} | {"e": "refused", "id": …, "reason": …}        what else becomes of it, at once or later
    {"e": "first" | "over" | "left", "id": …}, {"e": "sweep"}, {"e": "serve", "pool": …}
    {"e": "failed" | "put_off", …}                     what a replay does not follow
    {"e": "full"}                                      the file had all the bytes that it may have

`t` is monotonic seconds. While it is on, all that one event leads to has that event's time, so that whoever is told the
same sees the same (`functions.simulator.replay`). Prompts and answers are in none of it; sessions are, as their callers
named them: the file is the gateway's own user's (mode 0600) and is bounded. Lines are written to the page cache a few
times a second by the event loop itself: on for a diagnosis, not for always.

The recorded parts stand in for the plain ones: where there is no recorder, nothing here runs.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.admission.queue import Refuse
from functions.decisions.admission.ticket import WAITING
from functions.decisions.routing.choice import NoReplica, Prediction, ReplicaView, RouteRequest
from functions.decisions.routing.own_load import Place
from functions.decisions.routing.retry import Failure
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.view import FleetView
from functions.gateway.admission.queue import AdmissionQueues, PoolTicket, Waiting, _request_of, _Room
from functions.gateway.request.relay import Usage
from functions.gateway.request.request import Admitted
from functions.gateway.routing.router import OtherChoice, Router

_log = logging.getLogger(__name__)
_LAST_WORDS_BYTES = 64


class DecisionRecorder:
    """The writing side; owned by one event loop."""

    def __init__(self, path: Path, max_bytes: int, clock: Callable[[], float]) -> None:
        """OSError where the file cannot be made."""
        self._file: BinaryIO | None = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._left_bytes = max_bytes - _LAST_WORDS_BYTES
        self._clock = clock
        self._held_s: float | None = None

    def clock(self) -> float:
        """The time of the event under way, or now."""
        return self._clock() if self._held_s is None else self._held_s

    @contextmanager
    def one_event(self, at_s: float | None = None) -> Iterator[None]:
        """Whatever happens in here happens at one time; an event within an event at the outer one's."""
        former = self._held_s
        if former is None:
            self._held_s = self._clock() if at_s is None else at_s
        try:
            yield
        finally:
            self._held_s = former

    def note(self, event: str, **fields: Any) -> None:
        if self._file is None:
            return
        line = msgspec.json.encode({"e": event, "t": self.clock(), **fields}) + b"\n"
        self._left_bytes -= len(line)
        try:
            if self._left_bytes < 0:
                self._file.write(b'{"e":"full"}\n')
                self.close()
            else:
                self._file.write(line)
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _give_up(self, error: OSError) -> None:
        self._file = None  # what it holds cannot be written either
        _log.warning("decisions are no longer recorded: %s", error)


class RecordedFleet(FleetView):
    """The fleet's view, with what was heard."""

    def __init__(self, recorder: DecisionRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def fold(self, heartbeat: Heartbeat, now_s: float, its_view: ReplicaView | None = None) -> bool:
        with self._recorder.one_event(now_s):
            self._recorder.note("beat", beat=heartbeat)
            return super().fold(heartbeat, now_s, its_view)


def recorded_router(recorder: DecisionRecorder) -> Callable[..., Router]:
    """What makes one: the same arguments as `Router`."""
    return partial(RecordedRouter, recorder)


class RecordedRouter(Router):
    """Routing, with what it knew and what it said."""

    def __init__(self, recorder: DecisionRecorder, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.recorder = recorder
        other: OtherChoice | None = named.get("other")
        recorder.note("begin", zone=named.get("zone", ""), router=other.name if other is not None else "shoal")
        self._wanted: RouteRequest | None = None

    def decide(self, admitted: Admitted, tried: Collection[ReplicaId]) -> Prediction | NoReplica:
        with self.recorder.one_event():
            decision = super().decide(admitted, tried)
            cached = self._wanted.cached_tokens if self._wanted is not None else {}
            known = {replica: tokens for replica, tokens in cached.items() if tokens}
            replica = decision.replica.id if isinstance(decision, Prediction) else ""
            self.recorder.note(
                "route",
                id=admitted.request_id,
                replica=replica,
                reason=decision.reason,
                cached=known,
                tried=list(tried),
            )
            return decision

    def sent(self, admitted: Admitted, decision: Prediction) -> Place:
        with self.recorder.one_event():
            return super().sent(admitted, decision)

    def failed(self, replica_id: ReplicaId, failure: Failure, told_to_wait_s: float, *, is_evidence: bool) -> float:
        self.recorder.note("failed", replica=replica_id, failure=failure.value)
        return super().failed(replica_id, failure, told_to_wait_s, is_evidence=is_evidence)

    def _request(self, admitted: Admitted, now_s: float) -> RouteRequest:
        self._wanted = super()._request(admitted, now_s)
        return self._wanted


class RecordedQueues(AdmissionQueues):
    """Waiting rooms, with who came and what became of them."""

    def __init__(self, recorder: DecisionRecorder, fleet: FleetView) -> None:
        super().__init__(recorder.clock, fleet)
        self.recorder = recorder
        self._epochs: dict[PoolName, int] = {}

    def submit(self, exchange: Waiting) -> None:
        recorder, admitted = self.recorder, exchange.admitted
        with recorder.one_event():
            self._note_policy(exchange)
            features = admitted.features
            recorder.note(
                "come", id=admitted.request_id, pool=admitted.model.pool, tenant=admitted.caller.tenant,
                model=admitted.model.engine_name, is_adapter=admitted.model.is_adapter, session=admitted.session,
                band=admitted.service_class, prompt_tokens=features.prompt_tokens, stream=admitted.stream,
                expected_tokens=features.expected_output_tokens, weight=self._weight_of(exchange),
                deadline_ms=admitted.deadline_ms,
            )  # fmt: skip
            super().submit(exchange)
            if exchange.ticket is not None and exchange.ticket.state == WAITING:
                recorder.note("waits", id=admitted.request_id)

    def _weight_of(self, exchange: Waiting) -> float:
        quota = exchange.catalogue.quota_of(exchange.admitted.caller.tenant)
        return quota.weight if quota is not None else 1.0

    def _note_policy(self, exchange: Waiting) -> None:
        """Once for each that the pool obeys."""
        pool, catalogue = exchange.admitted.model.pool, exchange.catalogue
        if self._epochs.get(pool) != catalogue.epoch:
            self._epochs[pool] = catalogue.epoch
            routing, admission = catalogue.routing_for(pool), catalogue.admission_for(pool)
            self.recorder.note("policy", pool=pool, routing=routing, admission=admission)

    def _turn_away(self, exchange: Waiting, refuse: Refuse) -> None:
        self.recorder.note("refused", id=exchange.admitted.request_id, reason=refuse.reason)
        super()._turn_away(exchange, refuse)

    def _serve(self, room: _Room) -> None:
        with self.recorder.one_event():
            if room.admission.waiting:
                pool = next(name for name, each in self._rooms.items() if each is room)
                self.recorder.note("serve", pool=pool)
            super()._serve(room)

    def first_token(self, exchange: Waiting) -> None:
        with self.recorder.one_event():
            if exchange.ticket is not None:
                self.recorder.note("first", id=exchange.admitted.request_id)
            super().first_token(exchange)

    def defer(self, exchange: Waiting) -> None:
        self.recorder.note("put_off", id=exchange.admitted.request_id)
        super().defer(exchange)

    def _release(self, ticket: PoolTicket, usage: Usage | None, cost: int | None) -> None:
        request_id = _request_of(ticket).admitted.request_id
        with self.recorder.one_event():
            if ticket.state == WAITING:
                self.recorder.note("left", id=request_id)
            else:
                counted = (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) if usage else None
                self.recorder.note("over", id=request_id, usage=counted, cost=cost)
            super()._release(ticket, usage, cost)

    def sweep(self, now_s: float) -> None:
        with self.recorder.one_event(now_s):
            self.recorder.note("sweep")
            super().sweep(now_s)
        self.recorder.flush()
