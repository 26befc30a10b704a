"""A changing pool runs one extra replica if it may and there is room; otherwise it changes without."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace

import psutil
import pytest

from functions.controller.local.adoption import plan_adoption
from functions.controller.local.found import Found
from functions.controller.local.instances import ProcessLedger
from functions.controller.local.operations import NotReadyAgain
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool, Target, pools_of
from functions.controller.local.spec import ProcessSpec, Timing
from functions.controller.local.surge import NEEDED_RATIO, has_memory, one_more, one_more_of_each
from tests.controller.configs import load, pool
from tests.controller.conftest import PATIENCE_S, Shop
from tests.controller.test_plan import CONTEXT
from tests.controller.test_supervisor import phases_of, replica_of
from tests.soak import sampled

A, B = Pool("a", 2, "a"), Pool("b", 1, "b")


def changed(specs: Mapping[str, ProcessSpec]) -> dict[str, ProcessSpec]:
    """Return the specs with another command line for each engine."""
    return {
        name: replace(spec, argv=(*spec.argv[:-1], "2")) if spec.role == "engine" else spec
        for name, spec in specs.items()
    }


@pytest.mark.servers
@pytest.mark.parametrize("replicas", sampled([1, 2], keep=[2]))
async def test_a_pool_never_has_fewer_replicas_than_it_wants(shop: Shop, replicas: int) -> None:
    before = {name: spec for index in range(replicas) for name, spec in replica_of("a", index).items()}
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")
    extra = replica_of("a", replicas, "2")
    change = asyncio.get_running_loop().create_task(
        shop.operations.converge(changed(before), surge=lambda pool: extra if pool == "a" else {})
    )
    engines = [f"engine-a-{index}" for index in range(replicas + 1)]
    serving, most = [], 0
    while not change.done():
        phases = phases_of(shop, *engines)
        serving.append(phases.count("ready"))
        most = max(most, len(phases) - phases.count("gone"))
        await asyncio.sleep(0.02)
    await change
    assert min(serving) == replicas
    assert most == replicas + 1
    assert shop.supervisor.specs().keys() == before.keys(), "the one more is gone"
    assert {shop.supervisor.specs()[name].argv[-1] for name in engines[:-1]} == {"2"}


@pytest.mark.servers
async def test_broken_change_is_detected_before_any_drain(shop: Shop) -> None:
    before = replica_of("a", 0)
    await shop.operations.converge(before)
    pids = {name: (await shop.reaches(name, "ready")).state.pid for name in before}
    broken = {
        name: replace(spec, argv=("/bin/false",), timing=Timing(start_s=1.5, drain_s=1))
        for name, spec in replica_of("a", 1).items()
    }
    with pytest.raises(NotReadyAgain, match="engine-a-1"):
        await shop.operations.converge(changed(before), surge=lambda _: broken)
    assert await shop.supervisor.wait_until(lambda: shop.supervisor.instances.keys() == pids.keys(), PATIENCE_S)
    assert {name: instance.state.pid for name, instance in shop.supervisor.instances.items()} == pids


@pytest.mark.soak
@pytest.mark.servers
async def test_only_pools_with_changed_engines_get_an_extra_replica(shop: Shop) -> None:
    before = {**replica_of("a", 0), **replica_of("b", 0)}
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")
    asked: list[str] = []

    def surge(name: str) -> dict[str, ProcessSpec]:
        asked.append(name)
        return {}

    after = {name: changed({name: spec})[name] if name == "engine-b-0" else spec for name, spec in before.items()}
    await shop.operations.converge(after, surge=surge)
    assert asked == ["b"]


def test_extra_replica_has_the_next_number_and_the_new_spec() -> None:
    slots = {"a-0": 0, "a-1": 1, "b-0": 2}
    more = one_more(CONTEXT, (A, B), Target("sim"), slots, "a")
    assert sorted(more) == ["agent-a-2", "engine-a-2"]
    assert {spec.slot for spec in more.values()} == {3}
    assert sorted(one_more(CONTEXT, (A, B), Target("sim", 1), slots, "b")) == ["agent-b-1", "engine-b-1"]


def test_surge_is_off_if_yaml_or_ports_forbid_it() -> None:
    assert one_more(CONTEXT, (replace(A, may_surge=False),), Target("sim"), {}, "a") == {}
    assert one_more(CONTEXT, (replace(A, replicas=20),), Target("sim"), {}, "a") == {}
    assert one_more(CONTEXT, (A,), Target("sim"), {}, "gone") == {}


@pytest.mark.parametrize(
    ("strategy", "may"),
    [
        ("", True),
        ("deploymentStrategy: {type: RollingUpdate}, ", True),
        ("deploymentStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}, ", True),
        ("deploymentStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}, ", False),
        ('deploymentStrategy: {rollingUpdate: {maxSurge: "0%"}}, ', False),
        ("deploymentStrategy: {type: Recreate}, ", False),
    ],
)
def test_deployment_strategy_controls_the_surge(strategy: str, may: bool) -> None:
    text = pool(bounds=f"minReplicas: 1, {strategy}".rstrip(", ")).replace(
        "modelFormat: {name: vLLM}", "modelFormat: {name: vLLM}, storageUri: pvc://shoal-models/base"
    )
    (found,) = pools_of(load(text))
    assert found.may_surge == may


def test_a_surge_needs_memory() -> None:
    mine = psutil.Process(os.getpid()).memory_info().rss
    assert has_memory([os.getpid()], available_bytes=int(mine * NEEDED_RATIO * 2))
    assert not has_memory([os.getpid()], available_bytes=int(mine * NEEDED_RATIO * 0.5))
    assert has_memory([], available_bytes=0)
    assert has_memory([2**22 + 1], available_bytes=0), "nobody can be looked at"


def test_next_controller_keeps_an_earlier_extra_replica() -> None:
    """The extra replica serves: it is drained like any other unwanted replica, not ended."""
    slots = {"a-0": 0, "a-1": 1, "b-0": 2, "a-2": 3}
    wanted = plan_fleet(CONTEXT, (A, B), Target("sim"), slots)
    more = one_more(CONTEXT, (A, B), Target("sim"), slots, "a")
    assert {spec.replica_id for spec in more.values()} == {"a-2"}
    found = [
        Found(pid, float(pid), spec.name, spec.spec_hash, leads=True)
        for pid, spec in enumerate([*wanted.values(), *more.values()], 100)
    ]
    candidates = [wanted, *one_more_of_each(CONTEXT, (A, B), Target("sim"), slots)]
    plan = plan_adoption(found, {each.pid: each.pid for each in found}, ProcessLedger(), candidates)
    assert {kept.spec.name for kept in plan.keep} == wanted.keys() | more.keys()
    assert plan.end == ()
