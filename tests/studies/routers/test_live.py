"""Live routers that shoal is compared with: they do what their descriptions say."""

from dataclasses import replace

import pytest

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.decisions.routing.choice import NoReplica, Prediction, RouteRequest
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.replicas import PoolIndex, PoolView, ReplicaView
from studies.routers import cache_aware as cache_awares
from studies.routers.cache_aware import CacheAware
from studies.routers.live import LIVE_ROUTERS, LiveChoice, LiveRouterName, live_choice

POOL, MODEL = PoolName("base"), EngineName("base")


def rows(*names: str) -> PoolIndex:
    views = [ReplicaView(ReplicaId(name), POOL, "", 0, "ready", 0, 0, 0.0, frozenset(), 50.0, 0.5) for name in names]
    return PoolIndex(PoolView(POOL, tuple(views)).replicas)


def picked(name: LiveRouterName, turns: int, load: OwnLoad | None = None) -> list[str]:
    router = LIVE_ROUTERS[name]()
    return [router.pick(POOL, MODEL, (), rows("a", "b", "c").rows, load or OwnLoad())[0] for _ in range(turns)]


def test_shoal_router_has_no_separate_entry() -> None:
    assert live_choice("shoal") is None


def test_round_robin_takes_turns() -> None:
    assert picked("round-robin", 5) == ["a", "b", "c", "a", "b"]


def test_least_loaded_chooses_the_replica_with_the_fewest_requests() -> None:
    load = OwnLoad({ReplicaId("a"): 2, ReplicaId("b"): 1, ReplicaId("c"): 1})
    assert picked("least-loaded", 2, load) == ["b", "b"]


@pytest.fixture
def router() -> CacheAware:
    return CacheAware()


def pick(router: CacheAware, blocks: tuple[int, ...], **in_flight: int) -> str:
    load = OwnLoad({ReplicaId(name): count for name, count in in_flight.items()})
    return router.pick(POOL, MODEL, blocks, rows("A", "B").rows, load)[0]


KNOWN, OTHERS = (1, 2, 3, 4), (11, 12, 13, 14, 15, 16)


def test_worked_example_from_the_prologue(router: CacheAware) -> None:
    assert pick(router, KNOWN) == "A"
    assert pick(router, KNOWN + OTHERS, A=5) == "A", "0.4 of it is known there"
    fresh = CacheAware()
    pick(fresh, KNOWN[:3])
    assert pick(fresh, (*KNOWN[:3], *OTHERS, 17), A=5) == "B", "0.3 is not above the threshold"
    assert pick(router, KNOWN, A=70, B=2) == "B", "out of balance"
    assert pick(router, KNOWN, A=66, B=2) == "B", "whoever had it last"


def test_cache_aware_chooses_only_candidates(router: CacheAware) -> None:
    pick(router, KNOWN)
    assert router.pick(POOL, MODEL, KNOWN, rows("B").rows, OwnLoad())[0] == "B"


def test_cache_aware_evicts_least_recently_used_prefixes(router: CacheAware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_awares, "MAX_BLOCKS", 8)
    pick(router, KNOWN)
    pick(router, OTHERS, A=1)
    assert len(router) == 8
    assert pick(router, OTHERS, B=1) == "B"
    assert pick(router, KNOWN, A=1) == "B", "its beginning is gone, and so is the match"


def test_cold_adapter_is_loaded_where_the_router_would_send_it() -> None:
    adapter = EngineName("acme/bot@sha256:1")
    views = [replace(row[6], peer_port=9) for row in rows("a", "b", "c").rows]
    pool, load = PoolIndex(views), OwnLoad({ReplicaId("a"): 1})
    router = LiveChoice("cache-aware", CacheAware())
    base = RouteRequest(MODEL, False, 100, "first")
    assert where(router.choose(base, pool, KNOWN, load, ())) == "b"
    cold = RouteRequest(adapter, True, 100, "second")
    assert router.choose(cold, pool, KNOWN, load, ()) == NoReplica("adapter_not_loaded")
    asked = router.choose_cold(cold, pool, load, ())
    assert isinstance(asked, ReplicaView) and asked.id == "b", "its prompt is known there"
    assert router.choose_cold(cold, pool, load, [view.id for view in views]) == NoReplica("all_tried")
    holders = PoolIndex([*views[:2], replace(views[2], adapters=frozenset({adapter}))])
    assert where(router.choose(cold, holders, KNOWN, load, ())) == "c", "holders come first"


def where(decision: Prediction | NoReplica) -> str:
    assert isinstance(decision, Prediction)
    return decision.replica.id
