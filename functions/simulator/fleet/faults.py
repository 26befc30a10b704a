"""Faults of replicas (crashes, hangs, slow nodes, lost zones) and their effect on requests.

    crash          the process is gone: connections break immediately, new ones are refused, heartbeats stop
    unreachable    its node or its network is gone: nothing breaks, nothing answers, heartbeats stop
    hang           it accepts requests and makes no step; its agent reports that, unless the agent hangs too (mute)
    slow           every step takes a multiple of its time

A request at a silent replica ends by the gateway's own timeouts: `first_byte_s` before the first token
(`Exchange.check`), `idle_s` after it. Worked example
(test_streams_on_an_unreachable_replica_end_after_their_idle_time): unreachable at 10 s, a running stream ends as
`upstream_lost` at 40 s.
"""

from functools import partial

from functions.decisions.routing.retry import AttemptFailure
from functions.simulator.events import Events
from functions.simulator.fleet.lifecycle import ReplicaLifecycle
from functions.simulator.fleet.replica import Life, Replica
from functions.simulator.fleet.setting import Timeouts
from functions.simulator.fleet.start_times import StartSource
from functions.simulator.fleet.upstream import ModelledConnection

_CHECK_S = 0.25
_WITH_PROCESS = frozenset({Life.STARTING, Life.WARM, Life.READY, Life.DRAINING})


class ReplicaFaults:
    def __init__(self, events: Events, lifecycle: ReplicaLifecycle, timeouts: Timeouts) -> None:
        self._events = events
        self._lifecycle = lifecycle
        self._timeouts = timeouts
        self._silent_since_s: dict[Replica, float] = {}
        self._is_checking = False
        lifecycle.condemn = partial(self.restart, source="disk")

    def crash(self, replica: Replica, *, unreachable: bool) -> None:
        """Kill the replica's process; do nothing if there is none. Its connections break, or hang if it is
        `unreachable`."""
        if replica.life not in _WITH_PROCESS:
            return
        self._lifecycle.engines.advance_engine(replica)
        self._lifecycle.lost(replica)
        replica.is_mute, replica.is_unreachable = True, unreachable
        if unreachable:
            replica.engine.freeze(self._events.now_s)
            self._watch(replica)
        else:
            self._silent_since_s.pop(replica, None)
            self._break_all(replica)

    def restart(self, replica: Replica, source: StartSource) -> None:
        """End the replica's process if it runs, and start another one; do nothing if the replica is gone or only
        ordered."""
        if replica.life is Life.GONE or replica.life is Life.ORDERED:
            return
        self.crash(replica, unreachable=False)
        self._silent_since_s.pop(replica, None)
        self._break_all(replica)
        self._lifecycle.restart_process(replica, source)

    def hang(self, replica: Replica, for_s: float, *, mute: bool) -> None:
        if replica.life not in _WITH_PROCESS or replica.engine.is_frozen:
            return
        self._lifecycle.engines.advance_engine(replica)
        replica.engine.freeze(self._events.now_s)
        replica.is_mute = mute
        self._watch(replica)
        self._events.after(for_s, partial(self._resume, replica, replica.incarnation))

    def slow(self, replica: Replica, factor: float, for_s: float) -> None:
        if replica.life not in _WITH_PROCESS:
            return
        self._set_pace(replica, replica.incarnation, factor)
        self._events.after(for_s, partial(self._set_pace, replica, replica.incarnation, 1.0))

    def _resume(self, replica: Replica, incarnation: int) -> None:
        if replica.incarnation != incarnation or replica.life not in _WITH_PROCESS:
            return
        self._silent_since_s.pop(replica, None)
        replica.is_mute = False
        replica.engine.thaw(self._events.now_s)
        self._lifecycle.engines.notify_gateways(replica)

    def _set_pace(self, replica: Replica, incarnation: int, factor: float) -> None:
        if replica.incarnation == incarnation and replica.life in _WITH_PROCESS:
            replica.engine.slow_down(factor, self._events.now_s)
            self._lifecycle.engines.notify_gateways(replica)

    def _break_all(self, replica: Replica) -> None:
        """Reset all connections of the replica."""
        for connection, _ in _connections_of(replica):
            self._fail(connection, AttemptFailure.RESET)

    def _watch(self, replica: Replica) -> None:
        self._silent_since_s[replica] = self._events.now_s
        if not self._is_checking:
            self._is_checking = True
            self._events.after(_CHECK_S, self._check)

    def _check(self) -> None:
        """Fail the streams that have waited longer than `idle_s` at silent replicas, and check again while there are
        any."""
        now_s, timeouts = self._events.now_s, self._timeouts
        for replica, since_s in list(self._silent_since_s.items()):
            for connection, first_s in _connections_of(replica):
                if first_s is not None and now_s - max(since_s, first_s) > timeouts.idle_s:
                    self._fail(connection, AttemptFailure.SILENT)
            if replica.life in (Life.LOST, Life.GONE) and not _connections_of(replica):
                del self._silent_since_s[replica]
        self._is_checking = bool(self._silent_since_s)
        if self._is_checking:
            self._events.after(_CHECK_S, self._check)

    def _fail(self, connection: ModelledConnection, failure: AttemptFailure) -> None:
        if connection.work is not None:
            self._lifecycle.engines.abort(connection)
            connection.fail(failure)


def _connections_of(replica: Replica) -> list[tuple[ModelledConnection, float | None]]:
    """Return the replica's connections with the times of their first tokens; None for one without a token."""
    found = [work.owner for work in replica.engine.works() if isinstance(work.owner, ModelledConnection)]
    return [(connection, connection.first_s) for connection in found]
