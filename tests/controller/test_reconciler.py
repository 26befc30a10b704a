"""The local reconciler: retried after any failure, and a revision is reported only when reached."""

from dataclasses import replace

import pytest

from functions.controller.local.adoption import plan_adoption
from functions.controller.local.found import Found
from functions.controller.local.instances import ProcessLedger
from functions.controller.local.layout import StateLayout
from functions.controller.local.pools import Pool, Target
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import LocalSettings
from functions.controller.local.spec import ProcessSpec, Timing
from functions.fleet.tasks import Supervised
from tests.controller.conftest import PATIENCE_S, Shop, tiny

pytestmark = pytest.mark.servers


class OfTiny(Reconciler):
    """Desires one process instead of a fleet."""

    spec: ProcessSpec

    def specs(self, former_slots: dict[str, int], pools: object = None) -> dict[str, ProcessSpec]:
        return {self.spec.name: self.spec}


class Told:
    """Records its calls; raises the first time if requested."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.outcomes: list[tuple[str, str]] = []

    def __call__(self, revision: str, stalled: str) -> None:
        if self.errors:
            raise self.errors.pop()
        self.outcomes.append((revision, stalled))


async def at_once(revision: str) -> None:
    return None


def reconciler(layout: StateLayout, told: Told, spec: ProcessSpec) -> OfTiny:
    made = OfTiny(
        layout, LocalSettings(), Target(), until_published=at_once, on_done=told, is_paused=lambda: False, counts={}
    )
    made.spec = spec
    return made


def of_pools(layout: StateLayout, counts: dict[str, int]) -> Reconciler:
    return Reconciler(
        layout,
        LocalSettings(),
        Target(engine="sim"),
        until_published=at_once,
        on_done=Told(),
        is_paused=lambda: False,
        counts=counts,
    )


async def test_unexpected_error_is_retried(shop: Shop, layout: StateLayout) -> None:
    told = Told(OSError("no space left on the device"))
    made, tasks = reconciler(layout, told, tiny()), Supervised(restart_after_s=0.05)
    tasks.forever("converge", lambda: made.run(shop.supervisor, shop.operations))
    made.set_desired("main@1", ())
    assert await shop.supervisor.wait_until(lambda: bool(told.outcomes), PATIENCE_S)
    assert told.outcomes == [("main@1", "")]
    await tasks.close()


async def test_second_pass_does_not_report_an_unready_fleet_as_done(shop: Shop, layout: StateLayout) -> None:
    told = Told()
    never = replace(tiny(), argv=("/bin/sleep", "600"), timing=Timing(start_s=0.5, drain_s=1))
    made, tasks = reconciler(layout, told, never), Supervised(restart_after_s=0.05)
    tasks.forever("converge", lambda: made.run(shop.supervisor, shop.operations))
    for number in (1, 2):
        made.set_desired("main@1", ())
        assert await shop.supervisor.wait_until(lambda: len(told.outcomes) >= number, PATIENCE_S)  # noqa: B023
    assert all(stalled for _, stalled in told.outcomes)
    await tasks.close()


def test_autoscaler_size_overrides_the_yaml_but_not_the_operator(layout: StateLayout) -> None:
    made = of_pools(layout, {"a": 3})
    made.set_desired("main@1", (Pool("a", 2, "m"), Pool("b", 1, "m")))
    assert replicas_in(made.specs({})) == {"a-0", "a-1", "a-2", "b-0"}
    assert "agent-a-2" in made.candidates({})[0], "what a controller that starts again recognises"
    made.rescale({"b": 2})
    assert replicas_in(made.specs({})) == {"a-0", "a-1", "b-0", "b-1"}
    made.retarget(Target(engine="sim", replicas=1))
    assert replicas_in(made.specs({})) == {"a-0", "b-0"}


def replicas_in(specs: dict[str, ProcessSpec]) -> set[str]:
    return {spec.replica_id for spec in specs.values() if spec.replica_id is not None}


@pytest.mark.parametrize("may_surge", [True, False])
@pytest.mark.parametrize("are_of", ["what is wanted", "what was applied last"])
def test_surplus_replicas_in_the_ledger_are_kept_until_drained(
    layout: StateLayout, may_surge: bool, are_of: str
) -> None:
    """The autoscaler's size is lost, or it was scaled down or its policy removed a moment before."""
    pool, other = Pool("a", 2, "m", may_surge=may_surge), Pool("a", 2, "m", args=("--seed=1",), may_surge=may_surge)
    earlier = of_pools(layout, {"a": 10})
    earlier.set_desired("main@1", (pool,))
    ran = earlier.specs({})
    slots = {spec.replica_id: spec.slot for spec in ran.values() if spec.replica_id and spec.slot is not None}
    made = of_pools(layout, {})
    made.set_desired("main@2", (pool if are_of == "what is wanted" else other,))
    candidates = made.candidates(slots) + ([] if are_of == "what is wanted" else made.candidates(slots, (pool,)))
    found = [
        Found(pid, float(pid), spec.name, spec.spec_hash, leads=True) for pid, spec in enumerate(ran.values(), 100)
    ]
    plan = plan_adoption(found, {each.pid: each.pid for each in found}, ProcessLedger(), candidates)
    assert plan.end == ()
    assert {kept.spec.replica_id for kept in plan.keep} == {None, *(f"a-{number}" for number in range(10))}
    assert "a-2" not in replicas_in(made.specs(slots)), "it is drained then"


def test_ledger_without_our_replicas_has_no_effect(layout: StateLayout) -> None:
    made = of_pools(layout, {})
    made.set_desired("main@1", (Pool("a", 1, "m"),))
    odd = {"a-3": 99, "a-4": -1, "a-20": 1, "a-01": 2, "a-x": 3, "a-": 4, "gone-0": 5, "": 6}
    assert set().union(*(replicas_in(specs) for specs in made.candidates(odd))) == {"a-0", "a-1"}


def test_scaled_up_pools_yield_to_declared_replicas_of_others(layout: StateLayout) -> None:
    made = of_pools(layout, {"a": 19})
    made.set_desired("main@1", (Pool("a", 2, "m"),))
    assert len(replicas_in(made.candidates({})[0])) == 19
    made.set_desired("main@2", (Pool("a", 2, "m"), Pool("b", 4, "m")))
    wanted = replicas_in(made.specs({}))
    assert {name for name in wanted if name.startswith("b")} == {f"b-{number}" for number in range(4)}
    assert len(wanted) == 20
    made.rescale({"a": 100_000})
    assert len(replicas_in(made.candidates({})[0])) == 20, "a controller that starts with such a file starts"
