"""A supervisor that forks engines from a parked process, and starts them directly if it cannot fork."""

import asyncio
import os
import sys
from dataclasses import replace

import httpx
import pytest

from functions.controller.local.adoption import fleet_processes, plan_adoption, sessions_of
from functions.controller.local.children import send_signal, session_members
from functions.controller.local.instances import Instance, ProcessLedger
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan_parked import with_parked
from functions.controller.local.pools import Pool
from functions.controller.local.spec import HttpProbe, ProcessSpec, Timing
from tests.controller.conftest import PATIENCE_S, Shop, free_port
from tests.controller.test_plan import CONTEXT

pytestmark = pytest.mark.servers
POOL = Pool("a", 1, "m")


def simulated(number: int) -> ProcessSpec:
    port = free_port()
    return ProcessSpec(
        name=f"engine-a-{number}",
        role="engine",
        argv=(
            sys.executable, "-m", "functions.engines.sim", "--model", "m", "--served-model-name", "m",
            "--host", "127.0.0.1", "--port", str(port),
        ),
        env=(("PYTHONSAFEPATH", "1"),),
        inherits=("SHOAL_SIM_",),
        readiness=HttpProbe(f"http://127.0.0.1:{port}/health"),
        timing=Timing(start_s=PATIENCE_S, drain_s=5),
        pool="a",
        replica_id=f"a-{number}",
        port=port,
    )  # fmt: skip


def with_one(layout: StateLayout, *engines: ProcessSpec) -> dict[str, ProcessSpec]:
    context = replace(CONTEXT, layout=layout, parked_engines=1)
    return {spec.name: spec for spec in with_parked(context, engines, [(POOL, simulated(0))], "sim")}


async def waiting(shop: Shop, layout: StateLayout, *engines: ProcessSpec) -> tuple[Instance, dict[str, ProcessSpec]]:
    """Converge, and wait until the parked process is ready."""
    specs = with_one(layout, *engines)
    await shop.operations.converge(specs)
    (name,) = (name for name, spec in specs.items() if spec.role == "parked")
    return await shop.reaches(name, "ready"), specs


def log_of(layout: StateLayout, name: str) -> str:
    file = layout.log_file(name)
    return file.read_text() if file.exists() else ""


async def test_forked_engine_serves_and_ends_completely(shop: Shop, layout: StateLayout) -> None:
    parked, _ = await waiting(shop, layout)
    specs = with_one(layout, simulated(0))
    await shop.operations.converge(specs)
    engine = await shop.reaches("engine-a-0", "ready")
    assert engine.child is not None and engine.child.process is None, "it is the parked process's child"
    assert f"process {engine.state.pid} is engine-a-0" in log_of(layout, parked.spec.name)
    assert session_members(engine.child.pid)[-1] == engine.child.pid, "it leads a session of its own"
    async with httpx.AsyncClient() as client:
        models = (await client.get(f"http://127.0.0.1:{engine.spec.port}/v1/models")).json()
    assert models["data"][0]["id"] == "m"
    await shop.operations.stop_all()
    assert not fleet_processes(layout, ProcessLedger())


async def test_killed_parked_process_is_replaced_while_its_engines_run(shop: Shop, layout: StateLayout) -> None:
    parked, _ = await waiting(shop, layout)
    await shop.operations.converge(with_one(layout, simulated(0)))
    engine = await shop.reaches("engine-a-0", "ready")
    former, pid = parked.state.pid, engine.state.pid
    assert former is not None
    send_signal(former, 9)  # type: ignore[arg-type]
    assert await shop.supervisor.wait_until(
        lambda: parked.state.restarts == 1 and parked.state.phase == "ready", PATIENCE_S
    )
    assert (engine.state.phase, engine.state.pid) == ("ready", pid)
    await shop.operations.restart("engine-a-0")
    assert engine.child is not None and engine.child.process is None, "and is forked from the new one"


async def test_a_killed_engine_is_forked_again(shop: Shop, layout: StateLayout) -> None:
    await waiting(shop, layout)
    await shop.operations.converge(with_one(layout, simulated(0)))
    engine = await shop.reaches("engine-a-0", "ready")
    pid = engine.state.pid
    assert pid is not None
    send_signal(pid, 9)  # type: ignore[arg-type]
    assert await shop.supervisor.wait_until(
        lambda: engine.state.pid not in (None, pid) and engine.state.phase == "ready", PATIENCE_S
    )
    assert engine.child is not None and engine.child.process is None


@pytest.mark.parametrize("trouble", ["stopped", "another environment", "not there"])
async def test_engine_starts_directly_if_it_cannot_be_forked(
    shop: Shop, layout: StateLayout, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked, _ = await waiting(shop, layout)
    specs = with_one(layout, simulated(0))
    if trouble == "stopped":
        monkeypatch.setattr("functions.controller.local.children.ASK_S", 0.3)
        os.kill(parked.state.pid or 0, 19)
    elif trouble == "another environment":
        specs["engine-a-0"] = replace(specs["engine-a-0"], env=(("OMP_NUM_THREADS", "3"), ("PYTHONSAFEPATH", "1")))
    else:
        specs["engine-a-0"] = replace(specs["engine-a-0"], forked_from="parked-gone")
    await shop.operations.converge(specs)
    engine = await shop.reaches("engine-a-0", "ready")
    assert engine.child is not None and engine.child.process is not None
    if trouble == "stopped":
        os.kill(parked.state.pid or 0, 18)
        await asyncio.sleep(1.0)  # real time: it reads the earlier requests, whose senders have given up
        assert engine.state.phase == "ready"
        assert not [p for p in fleet_processes(layout, shop.ledger()) if p.leads and p.pid not in known_pids(shop)]


def known_pids(shop: Shop) -> set[int | None]:
    return {instance.state.pid for instance in shop.supervisor.instances.values()}


async def test_next_controller_keeps_forked_engines_and_their_parent(shop: Shop, layout: StateLayout) -> None:
    """Both have the parked process's environment in their process entries: only the ledger distinguishes them."""
    parked, _ = await waiting(shop, layout)
    specs = with_one(layout, simulated(0))
    await shop.operations.converge(specs)
    engine = await shop.reaches("engine-a-0", "ready")
    await shop.die()
    ledger = shop.ledger()
    found = fleet_processes(layout, ledger)
    plan = plan_adoption(found, sessions_of(found), ledger, [specs])
    assert {each.spec.name: each.pid for each in plan.keep} == {
        parked.spec.name: parked.state.pid,
        "engine-a-0": engine.state.pid,
    }
    assert plan.end == ()


async def test_parked_process_is_kept_if_the_ledger_is_ambiguous(shop: Shop, layout: StateLayout) -> None:
    parked, _ = await waiting(shop, layout)
    specs = with_one(layout, simulated(0))
    await shop.operations.converge(specs)
    engine = await shop.reaches("engine-a-0", "ready")
    await shop.die()
    found = fleet_processes(layout, ProcessLedger())
    plan = plan_adoption(found, sessions_of(found), ProcessLedger(), [specs])
    assert [each.pid for each in plan.keep] == [parked.state.pid]
    assert engine.state.pid in {each.pid for each in plan.end}
    assert {sessions_of(found)[each.pid] for each in plan.end} == {engine.state.pid}, "and what is of its session"
