"""What one gateway knows, and where it would send a request by that: the real view of the fleet and the real router.

    _decide      a replica of the pool where the request is, or why there is none
    _shifted     its own pool, or another one where that is near its limit (`decisions.routing.fallback`)

Neighbours: `gateway` is this with requests under way; `room` is one pool of it.
"""

from collections.abc import Iterator, Sequence

from functions.api.ids import PoolName, ReplicaId
from functions.api.snapshot import FallbackWhen
from functions.decisions.baselines.protocol import Question, SimulatedRouter
from functions.decisions.routing import fallback
from functions.decisions.routing.candidates import all_candidates
from functions.decisions.routing.choice import NoReplica, Prediction, RouteRequest, predict, route
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import Row
from functions.decisions.routing.session_affinity import SessionAffinity
from functions.fleet.view import FleetView
from functions.simulator.fleet.request import NOBODY, Request
from functions.simulator.fleet.room import Room, Rooms
from functions.simulator.fleet.setting import Zone
from functions.simulator.fleet.world import World


class Chooser:
    def __init__(self, name: str, zone: Zone, world: World, router: SimulatedRouter | None) -> None:
        self.name = name
        self.zone = zone
        self._events = world.events
        self._setting = world.setting
        self._router = router  # another's; None: shoal's own
        self._load = OwnLoad()
        self.sessions = SessionAffinity(self._now)
        self.fleet = FleetView()
        self.rooms = Rooms(world.setting, self.fleet, world.events, world.told)

    def _now(self) -> float:
        return self._events.now_s

    # a replica

    def _decide(self, request: Request, room: Room) -> Prediction | NoReplica:
        now_s = self._events.now_s
        standing = self.fleet.standing(request.pool, now_s)
        excluded = standing.out | request.tried if request.tried or standing.out else NOBODY
        if standing.resting_s:
            excluded = excluded.union(standing.resting_s)
        index = self.fleet.index(request.pool)
        if self._router is not None:
            return self._asked_router(self._router, request, excluded)
        return route(
            self._wanted(request, room), index, room.routing, self._load,
            excluded=excluded, penalties_ms=standing.penalties_ms,
        )  # fmt: skip

    def _wanted(self, request: Request, room: Room) -> RouteRequest:
        asked, home = request.asked, None
        if asked.session is not None:
            home = self.sessions.replica_of(request.pool, asked.tenant, asked.session)
        return RouteRequest(
            request.model,
            request.is_adapter,
            asked.prompt_tokens,
            asked.session or self._key(request),
            room.cached_tokens(request, self._events.now_s),
            home,
            self.zone.name,
            request.expected_tokens,
        )

    def _asked_router(
        self, router: SimulatedRouter, request: Request, excluded: frozenset[ReplicaId]
    ) -> Prediction | NoReplica:
        asked, index = request.asked, self.fleet.index(request.pool)
        wanted = RouteRequest(request.model, request.is_adapter, asked.prompt_tokens, self._key(request))
        rows = all_candidates(wanted, index, excluded)
        if isinstance(rows, NoReplica):
            return rows
        return predict(wanted, self._picked(router, request, rows)[6], self._load)

    def _picked(self, router: SimulatedRouter, request: Request, rows: Sequence[Row]) -> Row:
        return router.pick(self._question(request), rows, self._load)

    def _question(self, request: Request) -> Question:
        asked = request.asked
        return Question(
            self._key(request), request.pool, request.model, request.blocks, self._setting.block_tokens,
            asked.prompt_tokens, asked.output_tokens, asked.session,
        )  # fmt: skip

    # a pool

    def _shifted(self, request: Request, room: Room) -> Room:
        """Its own pool, or where it is answered sooner while that one is near its limit."""
        here = self._decide(request, room)
        if isinstance(here, NoReplica) or room.admission is None:
            return room
        asked = request.asked
        slo_s = room.admission.rules[asked.band].slo_s
        pressure = fallback.pressure_ratio(fallback.waiting_ms(here), slo_s * 1000 if slo_s is not None else None)
        ladder_ratio = room.ladder.shift_ratio(room.admission) if room.ladder is not None else 0.0
        if pressure <= fallback.SHIFT_FROM_PRESSURE_RATIO and not ladder_ratio:
            return room
        cached_ratio = here.cached_tokens / max(1, asked.prompt_tokens)
        draw = self.rooms.draw(self._key(request))
        if not fallback.shifts(pressure, cached_ratio, draw, ladder_ratio):
            return room
        home = (request.pool, request.model, request.is_adapter, request.blocks)
        for target in list(self._next_pools(request, room, "saturated")):
            self._to_pool(request, target)
            there = self._decide(request, self.rooms.room(target))
            if isinstance(there, Prediction) and (draw < ladder_ratio or there.total_ms < here.total_ms):
                room.sent_elsewhere(request)
                request.is_for_room = True
                return self.rooms.room(target)
            request.pool, request.model, request.is_adapter, request.blocks = home
            request.been = request.been[:-1]
            if isinstance(there, Prediction):
                break
        return room

    def _next_pools(self, request: Request, room: Room, when: FallbackWhen) -> Iterator[PoolName]:
        tier = self._setting.quotas.get(request.asked.tenant, self._setting.quota)
        been = (*request.been, request.pool)
        steps = fallback.targets(room.routing.fallback, request.pool, when, tier.name if tier else "", been)
        return (pool for pool in steps if self.rooms.is_pool(pool))

    def _to_pool(self, request: Request, pool: PoolName) -> None:
        """The other pool's base model answers."""
        request.been = (*request.been, request.pool)
        request.pool, request.model = pool, self.rooms.engine_name(None)
        request.is_adapter, request.blocks = False, request.asked.blocks
        request.tried, request.failures = frozenset(), ()

    def _key(self, request: Request) -> str:
        return f"{self.name}{request.number}"
