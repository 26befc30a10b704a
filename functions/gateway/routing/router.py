"""Router: choose a replica for an admitted request, and account for its attempts.

    decide -> sent -> started -> left

`decide` collects what the fleet, the prefix sources and the sessions know, and a pure function chooses. An attempt
calls `record_sent` when it begins, `record_first_token` with its first token, and `record_over` when it is over.
Each is called exactly once, so that the counted load is the real load.

With an `OtherChoice` another algorithm chooses, for comparison, from the same candidates and with the same
accounting. It also chooses the replica that loads a missing adapter.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import Protocol

import msgspec

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.cold import choose_cold
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.routing.choice import NoReplica, PoolView, Prediction, ReplicaView, RouteRequest, route
from functions.decisions.routing.homes import SETTLES_S, assumed_home
from functions.decisions.routing.own_load import InFlightSlot, OwnLoad
from functions.decisions.routing.prediction import SESSION_CACHED_RATIO
from functions.decisions.routing.replicas import EVERY, PoolIndex
from functions.decisions.routing.retry import AttemptFailure
from functions.fleet.outlier_status import OutlierStatus
from functions.fleet.view import FleetView
from functions.gateway.prefix.index import Prefixes
from functions.gateway.request.request import Admitted, Ended
from functions.gateway.routing.adapter_copies import AdapterCopies
from functions.gateway.routing.homes import SessionHomes
from functions.gateway.routing.silence import Silence

_UNSEEN_MAX_S = 60.0


class OtherChoice(Protocol):
    """Another routing algorithm."""

    name: str

    def choose(
        self,
        request: RouteRequest,
        pool: PoolIndex,
        text_blocks: Sequence[int],
        load: OwnLoad,
        excluded: Collection[ReplicaId],
    ) -> Prediction | NoReplica: ...

    def choose_cold(
        self, request: RouteRequest, pool: PoolIndex, load: OwnLoad, excluded: Collection[ReplicaId]
    ) -> ReplicaView | NoReplica:
        """Return the replica that should load the adapter, if no replica has it."""


class Router:
    """Choice of replicas for one gateway. Owned by one event loop; times are monotonic seconds."""

    def __init__(
        self,
        fleet: FleetView,
        prefixes: Prefixes,
        clock: Callable[[], float],
        copies: AdapterCopies,
        *,
        zone: str = "",
        other: OtherChoice | None = None,
    ) -> None:
        self._fleet = fleet
        self._prefixes = prefixes
        self._clock = clock
        self._zone = zone
        self.copies = copies
        self._other = other
        self._unseen: list[tuple[float, int, InFlightSlot]] = []  # when the prompts should have been computed
        self.load = OwnLoad()
        self.silence = Silence()
        self.homes = SessionHomes(clock)
        self._assumed: tuple[bytes, ReplicaId | None] = (b"", None)  # the last conversation with a computed home
        self._alike: bytes | None = None  # the last hash that is not a conversation

    def set_zone(self, zone: str) -> None:
        """Set the gateway's own zone for routing, which may become known only after its start."""
        self._zone = zone

    def decide(self, admitted: Admitted, tried: Collection[ReplicaId]) -> Prediction | NoReplica:
        """Return the replica for the request with its predicted times, or why there is none.

        `tried` are replicas on which it failed already. Suspected and probed replicas are used only as a last resort.
        """
        now_s, pool = self._clock(), admitted.model.pool
        self._assume_started(now_s)
        index, status = self._fleet.index(pool), self._fleet.outlier_status(pool, now_s)
        out = status.out.union(tried) if tried else status.out
        excluded = out.union(status.resting_s) if status.resting_s else out
        if status.suspected:  # suspected with their node or zone: used only if no other replica can serve
            avoiding = self._decide(admitted, index, status, excluded | status.suspected, now_s)
            if not isinstance(avoiding, NoReplica):
                return avoiding
        decision = self._decide(admitted, index, status, excluded, now_s)
        if isinstance(decision, NoReplica) and decision.reason == "all_tried" and status.probed and not tried:
            return self._decide_with_probed(admitted, index, status, now_s)
        return decision

    def _decide_with_probed(
        self, admitted: Admitted, index: PoolIndex, status: OutlierStatus, now_s: float
    ) -> Prediction | NoReplica:
        """Return the choice among replicas that are being probed too, because no other can serve the request.

        Waiting for the probe would reject every request.
        """
        excluded = (status.out - status.probed).union(status.resting_s)
        decision = self._decide(admitted, index, status, excluded, now_s)
        return decision if isinstance(decision, NoReplica) else msgspec.structs.replace(decision, reason="panic")

    def _decide(
        self,
        admitted: Admitted,
        index: PoolIndex,
        status: OutlierStatus,
        excluded: Collection[ReplicaId],
        now_s: float,
    ) -> Prediction | NoReplica:
        if self._other is not None:
            features, model = admitted.features, admitted.model
            request = RouteRequest(
                model.engine_name,
                model.is_adapter,
                features.prompt_tokens,
                admitted.request_id,
                tenant=admitted.caller.tenant,
            )
            return self._other.choose(request, index, features.text_blocks, self.load, excluded)
        decision = route(
            self._request(admitted, index, now_s),
            index,
            admitted.routing,
            self.load,
            excluded=excluded,
            penalties_ms=status.penalties_ms,
        )
        if isinstance(decision, NoReplica):
            return self._may_rest(decision, status, admitted)
        return msgspec.structs.replace(decision, reason="panic") if status.panic else decision

    def choose_cold(
        self,
        request: RouteRequest,
        pool: PoolView,
        policy: RoutingEntry,
        load: OwnLoad,
        excluded: Collection[ReplicaId],
    ) -> ReplicaView | NoReplica:
        """Return the replica that should load an adapter that no replica has, or why there is none."""
        if self._other is None:
            return choose_cold(request, pool, policy, load, excluded)
        return self._other.choose_cold(request, self._fleet.index(pool.name), load, excluded)

    def _may_rest(self, decision: NoReplica, status: OutlierStatus, admitted: Admitted) -> NoReplica:
        """Return "told_to_wait", with the shortest rest in s, if resting replicas could serve it, else the decision."""
        resting_s, model = status.resting_s, admitted.model
        if resting_s and model.is_adapter:
            holders = {row[0] for row in self._fleet.index(model.pool).rows_of(model.engine_name)}
            resting_s = {each: rest_s for each, rest_s in resting_s.items() if each in holders}
        waits_s = [rest_s for each, rest_s in resting_s.items() if each not in status.out]
        return NoReplica("told_to_wait", min(waits_s)) if waits_s else decision

    def record_sent(self, admitted: Admitted, decision: Prediction) -> InFlightSlot:
        """Record that an attempt begins: load, cached prompt, conversation's home. Return its slot at the replica.

        If the decision names a replica that should have the adapter too, a copy is requested.
        """
        now_s, replica_id, model = self._clock(), decision.replica.id, admitted.model
        slot = self.load.add_request(replica_id, admitted.features.prompt_tokens - decision.cached_tokens, now_s)
        if not admitted.stream:
            heappush(self._unseen, (now_s + min(_UNSEEN_MAX_S, decision.total_ms / 1000), id(slot), slot))
        self._fleet.record_sent(replica_id, now_s)
        if decision.load_elsewhere is not None:
            self.copies.request_copy(model.engine_name, decision.load_elsewhere)
        if self._other is None:
            self._prefixes.record_sent(admitted, replica_id, now_s)
            if admitted.conversation is not None and admitted.conversation is not self._alike:
                known, assumed = self._assumed
                if known is not admitted.conversation:  # other requests were routed in between
                    assumed = self._assume(model, self._fleet.index(model.pool), admitted.conversation)
                index, name = self._fleet.index(model.pool), model.engine_name if model.is_adapter else EVERY
                if index.fresh and self._assumed_soon(model.pool, admitted.conversation, name) != assumed:
                    assumed = None  # the other gateways still assume the former home for a moment
                self.homes.record_sent(
                    model.pool, admitted.conversation, replica_id, assumed, admitted.routing.session_ttl_s, name
                )
        return slot

    def record_first_token(self, slot: InFlightSlot) -> None:
        """Record a stream's first token: its prompt is computed, and more data is expected from now on."""
        now_s = self._clock()
        self._fleet.record_first_token(slot.replica_id, slot.sent_s, now_s, slot.prefill_tokens)
        self.load.mark_first_token(slot)
        self.silence.expect_bytes(slot, now_s)

    def record_over(self, slot: InFlightSlot) -> None:
        """Record that an attempt is over: free its slot, and expect no more data of it."""
        self.load.remove_request(slot)
        self.silence.stop_expecting(slot)

    def ended(self, ended: Ended) -> None:
        """Record a complete answer (200) of the replica; other ends are ignored."""
        if ended.status == 200 and ended.prediction is not None:
            self._fleet.record_answer(ended.prediction.replica.id, ended.sent_s, self._clock())

    def record_failure(
        self, replica_id: ReplicaId, failure: AttemptFailure, retry_after_s: float, *, is_evidence: bool
    ) -> float:
        """Record a failed attempt. Return the seconds for which the replica is out, or 0.

        Failures that are evidence eject it, engine errors count as faults, and an overloaded one rests as it asks.
        """
        now_s = self._clock()
        if is_evidence:
            return self._fleet.eject(replica_id, now_s)
        if failure is AttemptFailure.ENGINE_ERROR:
            return self._fleet.record_fault(replica_id, now_s)
        if failure is AttemptFailure.OVERLOADED:
            self._fleet.record_refusal(replica_id, now_s, retry_after_s)
            return retry_after_s
        return 0.0

    def sweep(self, now_s: float) -> list[ReplicaId]:
        """Expire old sessions, avoid silent replicas and eject replicas that perform far worse than their pool.

        Return the ejected replicas. Called a few times a second.
        """
        self.homes.expire()
        self._settle(now_s)
        for replica_id in self.silence.mute_replicas(self.load.in_flight, now_s):
            self._fleet.record_refusal(replica_id, now_s)
        return self._fleet.eject_outliers(now_s)

    def _settle(self, now_s: float) -> None:
        """Let a newly ready replica have its share of the homes only after existing homes have been published."""
        for pool, index in self._fleet.indexes():
            if index.changed:
                self.homes.recheck(pool, index.changed)
                index.changed = set()
            for replica_id, until_s in list(index.fresh.items()):
                if not until_s:
                    index.fresh[replica_id] = now_s + SETTLES_S
                elif until_s <= now_s:
                    del index.fresh[replica_id]
        self.homes.publish_moved(self._assumed_soon)

    def _assumed_soon(self, pool: PoolName, conversation: bytes, name: EngineName) -> ReplicaId | None:
        index = self._fleet.index(pool)
        return assumed_home(conversation.hex(), index, name, is_adapter=name != EVERY, settled=False)

    def _assume_started(self, now_s: float) -> None:
        """Record the prompts of unstreamed answers as computed whose predicted (or longest) time has passed."""
        unseen = self._unseen
        while unseen and unseen[0][0] <= now_s:
            slot = heappop(unseen)[2]
            if slot.prefill_tokens:  # most have ended already
                self.load.mark_first_token(slot)

    def _request(self, admitted: Admitted, index: PoolIndex, now_s: float) -> RouteRequest:
        model, features, conversation = admitted.model, admitted.features, admitted.conversation
        known, home, is_first_turn = self._prefixes.cached(admitted, now_s), None, False
        cached = known.tokens
        if conversation is not None and admitted.routing.session_ttl_s > 0.0:
            home, is_first_turn, is_seen = self._home(admitted, index, conversation)
            if home is not None and not is_first_turn:
                # The last turn may have come to another gateway without a report. Then its home has that turn's tokens,
                # unless the local record shows that the cached text is gone.
                held, believed = cached.get(home, 0), admitted.former_tokens
                if believed is None:
                    believed = int(SESSION_CACHED_RATIO * features.prompt_tokens)
                if held < believed and (not is_seen or 0 < held == max(cached.values())):
                    cached = {**cached, home: believed}
        return RouteRequest(
            model.engine_name,
            model.is_adapter,
            features.prompt_tokens,
            conversation.hex() if conversation is not None else admitted.request_id,
            cached,
            home,
            self._zone,
            features.expected_output_tokens,
            is_first_turn,
            admitted.caller.tenant,
            model.weights,
            known.in_host,
        )

    def _home(self, admitted: Admitted, index: PoolIndex, conversation: bytes) -> tuple[ReplicaId | None, bool, bool]:
        """Return the conversation's replica or None, if its cache must be empty, and if this gateway chose it."""
        model = admitted.model
        home = self.homes.home_of(model.pool, conversation)
        if home is None:
            return self._assume(model, index, conversation), admitted.is_first_turn, False
        if admitted.is_first_turn and admitted.session is None:
            self._alike = conversation  # many requests begin like this (a load test, a greeting): not a conversation
            return None, True, False
        if home.replica_id in (index.holders.get(model.engine_name, ()) if model.is_adapter else index.ready):
            return home.replica_id, False, home.is_seen
        # The cache is gone, so any replica starts without it
        return self._assume(model, index, conversation), True, False

    def _assume(self, model: ResolvedModel, index: PoolIndex, conversation: bytes) -> ReplicaId | None:
        assumed = assumed_home(conversation.hex(), index, model.engine_name, is_adapter=model.is_adapter)
        self._assumed = conversation, assumed
        return assumed
