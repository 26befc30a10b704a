"""Drive the engines of all replicas: pass requests of gateways to them, and report results back.

An engine is advanced when its next change is due and at its replica's heartbeats. A replica that refuses connections
does so after one round trip; an unreachable one fails after the gateway's connect timeout. Related modules:
`fluid_engine` is one engine, `lifecycle` manages the replicas, `faults` makes them fail.
"""

from collections.abc import Mapping
from functools import partial
from math import inf

from functions.api.ids import ReplicaId
from functions.decisions.routing.retry import AttemptFailure
from functions.simulator.events import Events
from functions.simulator.fleet.fluid_engine import FluidSequence
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.replica import Life, Replica
from functions.simulator.fleet.upstream import ModelledConnection

_REFUSED_S = 0.0005  # a round trip within a zone
_TAKES = frozenset({Life.READY, Life.DRAINING, Life.WARM})


class EngineDriver:
    def __init__(
        self, events: Events, outcome: Outcome, replicas: Mapping[ReplicaId, Replica], *, connect_s: float
    ) -> None:
        self._events = events
        self._outcome = outcome
        self._replicas = replicas
        self._connect_s = connect_s
        self._works = 0

    def send(self, connection: ModelledConnection) -> None:
        replica = self._replicas.get(connection.replica_id)
        if replica is None or not replica.answers or replica.life not in _TAKES:
            after_s = self._connect_s if replica is not None and replica.is_unreachable else _REFUSED_S
            self._events.after(after_s, partial(connection.fail, AttemptFailure.CONNECT))
            return
        request, is_adapter = connection.asking.request, connection.is_adapter
        self._works += 1
        blocks = connection.asking.blocks_for(is_adapter=is_adapter)
        output_tokens = 1 if connection.is_prefill else request.output_tokens
        work = connection.work = FluidSequence(
            self._works, request.prompt_tokens, output_tokens, connection, blocks=blocks, priority=request.band
        )
        source = connection.handed_over.remote_engine_id
        if source is not None:
            transfer_s = self._transfer_s(source, work)
            self._events.after(transfer_s, partial(self._add, replica, replica.engine, work))
        elif reload_s := replica.reload_s(work, self._events.now_s):
            self._events.after(reload_s, partial(self._add, replica, replica.engine, work))
        elif replica.adapters is None or not is_adapter:
            replica.engine.add(work, self._events.now_s)
            self.notify_gateways(replica)
        elif not replica.adapters.has(connection.model):
            connection.work = None
            self._events.after(_REFUSED_S, connection.adapter_missing)
        else:
            load_s = replica.adapters.acquire_slot(connection.model)
            self._events.after(load_s, partial(self._add, replica, replica.engine, work))

    def _transfer_s(self, source: ReplicaId, work: FluidSequence) -> float:
        """Return the seconds until the prompt's KV blocks have arrived, and mark them as received. If the source does
        not answer, return the time of a connection: the prompt is recomputed."""
        holder = self._replicas.get(source)
        if holder is None or not holder.answers:
            return self._connect_s
        work.is_received = True
        return holder.pool.transfer_s(work.prompt_tokens)

    def abort(self, connection: ModelledConnection) -> None:
        """Abort a request whose client or gateway left; does nothing if it is in no engine."""
        work, connection.work = connection.work, None
        if work is None or work.is_over:
            return
        replica = self._replicas.get(connection.replica_id)
        if replica is None:
            return
        replica.engine.drop(work, self._events.now_s)
        self._left(replica, connection)
        self.notify_gateways(replica)

    def notify_gateways(self, replica: Replica) -> None:
        """Report the engine's first tokens and finished requests to their gateways, and schedule its next change."""
        engine = replica.engine
        while engine.first or engine.over:
            first, engine.first = engine.first, []
            over, engine.over = engine.over, []
            for work in first:
                connection: ModelledConnection = work.owner  # type: ignore[assignment]
                connection.first(self._events.now_s)
            for work in over:
                self._outcome.preemptions += work.preemptions
                connection = work.owner  # type: ignore[assignment]
                connection.work = None
                self._left(replica, connection)
                connection.over(work.computed_tokens)
        if engine.next_s < replica.wake_s:
            replica.wake_s = engine.next_s
            self._events.at(engine.next_s, partial(self._wake, replica))

    def advance_engine(self, replica: Replica) -> None:
        """Advance the replica's engine to now, and report the results."""
        replica.engine.advance(self._events.now_s)
        self.notify_gateways(replica)

    def _wake(self, replica: Replica) -> None:
        now_s = self._events.now_s
        if now_s < replica.wake_s:
            return  # obsolete: an earlier wake-up has replaced this one
        replica.wake_s = inf
        if now_s >= replica.engine.next_s:
            replica.engine.advance(now_s)
        self.notify_gateways(replica)

    def _add(self, replica: Replica, engine: object, work: FluidSequence) -> None:
        connection: ModelledConnection = work.owner  # type: ignore[assignment]
        if work.is_over or connection.work is not work:
            return  # aborted in the meantime
        if replica.engine is engine and replica.answers:
            replica.engine.add(work, self._events.now_s)
            self.notify_gateways(replica)
        else:
            connection.work = None
            connection.fail(AttemptFailure.RESET)

    def _left(self, replica: Replica, connection: ModelledConnection) -> None:
        if replica.adapters is not None and connection.is_adapter:
            replica.adapters.release_slot(connection.model)
