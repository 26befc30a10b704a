"""Adapter slots, host memory and disk: loading costs and evictions."""

from functions.engines.sim.adapters import AdapterId, AdapterTiers
from functions.engines.sim.limits import StepCosts
from tests.engines.virtual import VirtualEngine, make_limits

COSTS = StepCosts(adapter_load_s=1.0, adapter_activate_s=0.1)
A, B, C, D = map(AdapterId, range(4))


def tiers(slots: int = 1, host: int = 2) -> AdapterTiers:
    return AdapterTiers(slots=slots, host=host, costs=COSTS)


def test_disk_costs_more_than_host_and_a_slot_costs_nothing() -> None:
    cache = tiers()
    assert cache.use(A, running=()) == 1.1
    assert cache.use(A, running=()) == 0
    assert cache.use(B, running=()) == 1.1
    assert cache.use(A, running=()) == 0.1, "out of the only slot, still in host memory"


def test_the_least_recently_used_leaves_host_memory_first() -> None:
    cache = tiers(slots=2, host=2)
    for adapter in (A, B, A, C):
        cache.use(adapter, running=())
    assert set(cache.in_host) == {A, C}
    assert cache.reads_disk(B) and not cache.reads_disk(A)


def test_what_leaves_host_memory_leaves_its_slot() -> None:
    cache = tiers(slots=2, host=2)
    for adapter in (A, B, C):
        cache.use(adapter, running=())
    assert set(cache.in_slots) <= set(cache.in_host) == {B, C}


def test_requests_are_counted_by_where_their_adapter_was() -> None:
    engine = VirtualEngine(make_limits(max_loras=1, max_cpu_loras=2))
    for adapter in (7, 7, 8, 7, 9, 8):
        engine.submit([1], reply=1, adapter=adapter)
        engine.step()
    assert engine.core.stats.adapter_uses == {"disk": 4, "slot": 1, "host": 1}


def test_an_adapter_that_runs_is_not_evicted() -> None:
    cache = tiers(slots=2, host=2)
    for adapter in (A, B, C, D):
        cache.use(adapter, running={A})
    assert A in cache.in_slots and A in cache.in_host


def test_load_from_disk_stalls_all_requests() -> None:
    engine = VirtualEngine(make_limits(), COSTS)
    engine.submit([1], reply=5)
    engine.step()
    engine.submit([2], reply=1, adapter=7)
    assert engine.step() > 1.1
    assert engine.step() < 0.1


def test_loading_ahead_makes_the_first_request_fast_and_charges_the_running_ones() -> None:
    engine = VirtualEngine(make_limits(), COSTS)
    assert engine.core.load_adapter(AdapterId(7)) == 1.1
    engine.submit([1], reply=2)
    assert engine.step() > 1.1
    engine.submit([2], reply=1, adapter=7)
    assert engine.step() < 0.1


def test_a_step_says_which_adapters_it_reads_from_disk() -> None:
    engine = VirtualEngine(make_limits())
    engine.submit([1], reply=1, adapter=7)
    assert engine.core.begin_step(0.0).disk_reads == (7,)
    engine.core.end_step(1.0)
    engine.submit([1], reply=1, adapter=7)
    assert engine.core.begin_step(2.0).disk_reads == ()
