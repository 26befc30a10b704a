"""The simulator's gateway, told what a real one was told, and asked for nothing but its decisions.

Told are beats, requests with what was known of their prompts, first tokens, ends, and when it looked around. Waiting
room, own load, sessions, view of the fleet and routing are the simulator's own. No engine answers: what it sent where
is only written down.

Neighbours: `functions.simulator.fleet.gateway` decides; `replay` tells and compares.
"""

from collections.abc import Iterable, Mapping

import msgspec

from functions.api.ids import ReplicaId, TenantId
from functions.decisions.admission.queue import Admission, Refuse
from functions.decisions.admission.ticket import BANDS, cost_tokens
from functions.decisions.overload.gateway_share import RoomLadder
from functions.decisions.request.length_model import LengthModel
from functions.decisions.routing.choice import NoReplica, Prediction, RouteRequest
from functions.fleet.heartbeat import Heartbeat
from functions.simulator.fleet.engine_room import EngineRoom
from functions.simulator.fleet.gateway import Gateway
from functions.simulator.fleet.request import Request
from functions.simulator.fleet.room import Room
from functions.simulator.fleet.setting import Setting
from functions.simulator.fleet.simulation import Simulation
from functions.simulator.replay.recording import Come, Over, RefusedEvent, Route, Waits
from functions.simulator.workload.asked import Asked

Choice = tuple[str, str, str, str]  # "route", "waits" or "refused"; the request; the replica; the reason


def choice_of(event: Route | Waits | RefusedEvent) -> Choice:
    """What a recorded gateway chose, as this one writes it down."""
    if isinstance(event, Route):
        return ("route", event.id, event.replica, event.reason)
    if isinstance(event, Waits):
        return ("waits", event.id, "", "")
    return ("refused", event.id, "", event.reason)


class _ToldLengths(LengthModel):
    """How long an answer is expected to be is part of what was recorded: callers may have bounded it."""

    def __init__(self) -> None:
        super().__init__()
        self.told_tokens = 0

    def output_tokens(self, model: str, tenant: str) -> int:
        return self.told_tokens


class ReplayedGateway(Gateway):
    """Tell it events in their order; `chosen` collects what it decided."""

    def __init__(self, world: "ReplayedWorld") -> None:
        super().__init__("", world.setting.zones[0], world, router=None, limits=None)
        self.chosen: list[Choice] = []
        self._lengths: _ToldLengths = _ToldLengths()
        self._policies = {pool.name: pool.admission for pool in world.setting.all_pools}
        self._begun: set[str] = set()  # pools that have a waiting room: a real one is made for the first request
        self._ids: dict[int, str] = {}
        self._by_id: dict[str, Request] = {}
        self._cached: Mapping[str, Mapping[ReplicaId, int]] = {}
        self._may_serve = False

    # what it is told

    def knows(self, routes: Iterable[Route]) -> None:
        """What was in which cache, as was known when the next requests were routed."""
        self._cached = {
            route.id: {ReplicaId(replica): tokens for replica, tokens in route.cached.items()} for route in routes
        }

    def hears(self, beat: Heartbeat) -> None:
        self.heard(beat)

    def asked(self, come: Come) -> None:
        self._begin(come.pool)
        self._lengths.told_tokens = come.expected_tokens
        number = self._count + 1
        self._ids[number] = come.id
        self.come(
            Asked(
                self._events.now_s, TenantId(come.tenant), come.prompt_tokens, max(1, come.expected_tokens),
                band=BANDS.index(come.band), session=come.session, pool=come.pool,
                adapter=come.model if come.is_adapter else None,
            )
        )  # fmt: skip
        request = next(reversed(self.open), None)
        if request is not None and request.number == number:  # else it was refused
            self._by_id[come.id] = request
            if request.ticket is not None and request.ticket.number in self.rooms.room(request.pool).waiting:
                self.chosen.append(("waits", come.id, "", ""))

    def began(self, request_id: str) -> None:
        request = self._by_id.get(request_id)
        if request is not None:
            self.first(request)

    def ended(self, over: Over) -> None:
        request = self._by_id.pop(over.id, None)
        if request is None or request.is_over:
            return
        cost = over.cost
        if over.usage is not None:
            prompt, cached, answer = over.usage
            cost = cost_tokens(max(0, prompt - cached), answer)
            if request.place is not None:
                self.fleet.answered(request.place.replica_id, request.place.sent_s, self._events.now_s)
        self._end(request, cost)

    def withdrawn(self, request_id: str) -> None:
        request = self._by_id.pop(request_id, None)
        if request is not None and not request.is_over:
            self._end(request, None)

    def serves(self, pool: str) -> None:
        """A real one does so when its loop comes to it; here nothing is served but when told."""
        self._may_serve = True
        room = next(each for each in self.rooms.all() if each.pool == pool)
        self._serve(room)
        self._may_serve = False

    # what it decides, written down

    def _decide(self, request: Request, room: Room) -> Prediction | NoReplica:
        decision = super()._decide(request, room)
        replica = decision.replica.id if isinstance(decision, Prediction) else ""
        self.chosen.append(("route", self._key(request), replica, decision.reason))
        return decision

    def _turned_away(self, request: Request, why: Refuse) -> None:
        self.chosen.append(("refused", self._key(request), "", why.reason))
        super()._turned_away(request, why)

    def _serve(self, room: Room) -> None:
        if self._may_serve:
            super()._serve(room)

    def _wanted(self, request: Request, room: Room) -> RouteRequest:
        cached = self._cached.get(self._key(request), {})
        return msgspec.structs.replace(super()._wanted(request, room), cached_tokens=cached)

    def _key(self, request: Request) -> str:
        return self._ids[request.number]

    def _begin(self, pool: str) -> None:
        if pool in self._begun:
            return
        self._begun.add(pool)
        room = next(each for each in self.rooms.all() if each.pool == pool)
        policy, now_s = self._policies[room.pool], self._events.now_s
        if policy is not None:
            room.admission = Admission(policy, now_s)
            room.admission.look([row[6] for row in self.fleet.index(room.pool).rows], now_s)
            room.ladder = RoomLadder()


class _NoEngines(EngineRoom):
    """Nobody answers."""

    def send(self, request: Request, replica_id: ReplicaId) -> None:
        """It is on its way; what becomes of it is told."""

    def abort(self, request: Request) -> None:
        """It was on its way."""


class ReplayedWorld(Simulation):
    """One gateway, no replicas of its own, and no time but the one that is told."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, ())
        self.lives.engines = _NoEngines(self.events, self.outcome, {}, connect_s=0.0)
        self.gateway = ReplayedGateway(self)

    def over(self, request: Request) -> None:
        """Nobody waits for it."""
