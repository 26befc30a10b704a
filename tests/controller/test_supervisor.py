"""The supervisor with real children: start, watch, end with all descendants, and adopt after a controller's death.

Tests run in real time, a second or two each, because processes are real.
"""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from functions.controller.local.adoption import drain_all, end_now, fleet_processes, plan_adoption, sessions_of
from functions.controller.local.children import is_alive, start_time
from functions.controller.local.instances import ProcessLedger
from functions.controller.local.operations import NoSuchProcess, NotReadyAgain, OperationSuperseded
from functions.controller.local.spec import HttpProbe, ProcessSpec, Timing
from tests.controller.conftest import PATIENCE_S, Shop, free_port, tiny

pytestmark = pytest.mark.servers


async def test_processes_start_in_dependency_order_and_are_recorded(shop: Shop) -> None:
    await shop.operations.converge({"late": tiny("late", after=("early",)), "early": tiny("early")})
    await shop.reaches("early", "starting")
    late = shop.supervisor.current("late")
    assert late is not None
    assert late.state.phase == "pending"
    await shop.reaches("late", "ready")

    def written() -> bool:
        return {entry.name: entry.phase for entry in shop.ledger().processes} == {"early": "ready", "late": "ready"}

    assert await shop.supervisor.wait_until(written, PATIENCE_S)
    entries = {entry.name: entry for entry in shop.ledger().processes}
    assert all(is_alive(entry.pid or 0, entry.started_at or 0) for entry in entries.values())


async def test_a_killed_process_comes_back_after_its_backoff(shop: Shop) -> None:
    await shop.operations.converge({"one": tiny()})
    first = (await shop.reaches("one", "ready")).state.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await shop.reaches("one", "starting")
    again = await shop.reaches("one", "ready")
    assert (again.state.restarts, again.state.last_exit) == (1, "killed by SIGKILL")
    assert again.state.pid != first


async def test_process_held_by_a_file_restarts_only_after_its_removal(shop: Shop, tmp_path: Path) -> None:
    """An engine whose accelerator has failed would fail again if it were restarted on it."""
    held = tmp_path / "accelerator-fault"
    await shop.operations.converge({"one": replace(tiny(), held_by=held)})
    first = (await shop.reaches("one", "ready")).state.pid
    held.touch()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await shop.reaches("one", "backoff")
    instance = shop.supervisor.current("one")
    assert instance is not None
    assert not await shop.supervisor.wait_until(
        lambda: instance.state.phase != "backoff", 2.0
    )  # its backoff is shorter
    held.unlink()
    assert (await shop.reaches("one", "ready")).state.pid != first


async def test_workers_of_a_dead_leader_are_killed(shop: Shop, tmp_path: Path) -> None:
    """vLLM's engine core survives its API server and keeps its memory."""
    worker_file = tmp_path / "worker"
    await shop.operations.converge({"one": tiny("one", "--worker", str(worker_file))})
    leader = (await shop.reaches("one", "ready")).state.pid
    worker = int(worker_file.read_text())
    worker_start = start_time(worker)
    assert leader is not None
    assert worker_start is not None
    os.kill(leader, signal.SIGKILL)
    assert await shop.supervisor.wait_until(lambda: not is_alive(worker, worker_start), PATIENCE_S)


async def test_process_without_liveness_is_killed_and_restarted(shop: Shop, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    await shop.operations.converge({"one": tiny("one", "--sick", str(sick), live=True)})
    first = (await shop.reaches("one", "ready")).state.pid
    sick.touch()
    await shop.reaches("one", "unready")
    await shop.reaches("one", "backoff")
    sick.unlink()
    again = await shop.reaches("one", "ready")
    assert again.state.pid != first
    assert again.state.last_exit == "killed by SIGKILL"


async def test_unreachable_prober_does_not_count_against_an_engine(shop: Shop) -> None:
    nobody = HttpProbe(f"http://127.0.0.1:{free_port()}/engine/livez")
    spec = replace(tiny(timing=Timing(liveness_failing_s=0.5)), liveness=nobody, liveness_by_other=True)
    await shop.operations.converge({"one": spec})
    first = (await shop.reaches("one", "ready")).state.pid
    await asyncio.sleep(2.5)
    assert (await shop.reaches("one", "ready")).state.pid == first


async def test_process_that_ignores_sigterm_is_killed_after_its_grace(shop: Shop) -> None:
    await shop.operations.converge({"one": tiny("one", "--ignore-term", timing=Timing(drain_s=0.5))})
    await shop.reaches("one", "ready")
    await shop.operations.stop_all()
    assert fleet_processes(shop.layout, ProcessLedger()) == []
    await shop.settles()


async def test_missing_program_is_reported_and_retried(shop: Shop) -> None:
    await shop.operations.converge({"one": replace(tiny(), argv=("/nowhere/at-all",))})
    instance = await shop.reaches("one", "backoff")
    assert "No such file" in instance.state.reason


async def test_a_changed_spec_replaces_one_process_after_the_other(shop: Shop) -> None:
    specs = {name: tiny(name) for name in ("a", "b")}
    await shop.operations.converge(specs)
    pids = {name: (await shop.reaches(name, "ready")).state.pid for name in specs}
    changed = {name: replace(spec, argv=(*spec.argv, "--spec", "2")) for name, spec in specs.items()}
    await shop.operations.converge(changed)
    for name in specs:
        assert (await shop.reaches(name, "ready")).state.pid != pids[name]
    kept = {name: instance.state.pid for name, instance in shop.supervisor.instances.items()}
    await shop.operations.converge(changed)
    assert {name: instance.state.pid for name, instance in shop.supervisor.instances.items()} == kept


async def test_failed_replacement_stops_further_ones(shop: Shop) -> None:
    specs = {name: tiny(name) for name in ("a", "b")}
    await shop.operations.converge(specs)
    untouched = (await shop.reaches("b", "ready")).state.pid
    await shop.reaches("a", "ready")
    soon = Timing(start_s=1.5, drain_s=1)
    broken = {name: replace(spec, argv=("/bin/false",), timing=soon) for name, spec in specs.items()}
    with pytest.raises(NotReadyAgain):
        await shop.operations.converge(broken)
    assert (await shop.reaches("b", "ready")).state.pid == untouched


async def test_unwanted_process_is_drained_and_removed(shop: Shop) -> None:
    spec = tiny("a")
    await shop.operations.converge({"a": spec, "b": tiny("b")})
    await shop.reaches("a", "ready")
    await shop.operations.converge({"a": spec})
    await shop.settles("a")


async def test_agent_stops_before_its_engine_and_restarts_with_it(shop: Shop) -> None:
    await shop.operations.converge(
        {"engine": tiny("engine", stops_before=("agent",)), "agent": tiny("agent", role="agent")}
    )
    before = [(await shop.reaches(name, "ready")).state.pid for name in ("engine", "agent")]
    await shop.operations.restart("engine")
    after = [(await shop.reaches(name, "ready")).state.pid for name in ("engine", "agent")]
    assert not set(before) & set(after)


def replica_of(pool: str, index: int, spec: str = "1") -> dict[str, ProcessSpec]:
    """Return the specs of an engine and its agent; another `spec` changes the engine's command line."""
    name = f"{pool}-{index}"
    engine = tiny(f"engine-{name}", "--spec", spec, stops_before=(f"agent-{name}",))
    agent = tiny(f"agent-{name}", role="agent")
    return {each.name: replace(each, pool=pool, replica_id=name) for each in (engine, agent)}


def phases_of(shop: Shop, *names: str) -> list[str]:
    found = [shop.supervisor.current(name) for name in names]
    return [instance.state.phase if instance is not None else "gone" for instance in found]


async def test_engine_of_a_removed_replica_stops_after_its_agent(shop: Shop) -> None:
    """The agent drains: its engine must answer until the last request has ended."""
    pair = replica_of("a", 0)
    pair["agent-a-0"] = replace(pair["agent-a-0"], argv=(*pair["agent-a-0"].argv, "--ignore-term"))
    await shop.operations.converge(pair)
    for name in pair:
        await shop.reaches(name, "ready")
    removal = asyncio.get_running_loop().create_task(shop.operations.converge({}))
    await shop.reaches("agent-a-0", "draining")
    await asyncio.sleep(1.0)  # real time: killing the agent takes two seconds
    assert phases_of(shop, "agent-a-0", "engine-a-0") == ["draining", "ready"]
    await removal
    await shop.settles()


async def test_replicas_of_a_pool_are_replaced_one_at_a_time(shop: Shop) -> None:
    before = {**replica_of("a", 0), **replica_of("a", 1)}
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")
    after = {
        name: replace(spec, argv=(*spec.argv[:-1], "2")) if spec.role == "engine" else spec
        for name, spec in before.items()
    }
    change = asyncio.get_running_loop().create_task(shop.operations.converge(after))
    serving = []
    while not change.done():
        serving.append(sum(phase == "ready" for phase in phases_of(shop, "engine-a-0", "engine-a-1")))
        await asyncio.sleep(0.02)
    await change
    assert min(serving) == 1
    assert [shop.supervisor.specs()[name].argv[-1] for name in ("engine-a-0", "engine-a-1")] == ["2", "2"]


async def test_superseded_change_is_abandoned_and_repaired(shop: Shop) -> None:
    before = {**replica_of("a", 0), **replica_of("a", 1)}
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")
    never_ready = {
        name: replace(spec, argv=("/bin/sleep", "600")) if spec.role == "engine" else spec
        for name, spec in before.items()
    }
    superseded = False
    change = asyncio.get_running_loop().create_task(
        shop.operations.converge(never_ready, superseded=lambda: superseded)
    )
    await shop.reaches("engine-a-0", "starting")
    superseded = True
    with pytest.raises(OperationSuperseded):
        await change
    assert phases_of(shop, "engine-a-1") == ["ready"], "the other one was not touched"
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")


async def test_serving_replica_is_not_replaced_while_another_of_its_pool_is_unready(shop: Shop, tmp_path: Path) -> None:
    sick = tmp_path / "sick"
    before = {**replica_of("a", 0), **replica_of("a", 1)}
    broken = before["engine-a-1"]
    before["engine-a-1"] = replace(broken, argv=(*broken.argv, "--sick", str(sick)))
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")
    sick.touch()
    await shop.reaches("engine-a-1", "unready")
    first = before["engine-a-0"]
    change = {
        **before,
        "engine-a-0": replace(first, argv=(*first.argv[:-1], "2")),
        # bounds the wait for this replica
        "engine-a-1": replace(before["engine-a-1"], timing=Timing(start_s=2, drain_s=1)),
    }
    pid = (await shop.reaches("engine-a-0", "ready")).state.pid
    with pytest.raises(NotReadyAgain, match="engine-a-1"):
        await shop.operations.converge(change)
    assert (await shop.reaches("engine-a-0", "ready")).state.pid == pid


async def test_unready_agent_is_replaced_with_its_engine_and_not_before(shop: Shop, tmp_path: Path) -> None:
    """The agent reported the weights of the new engine while the old engine still answered."""
    sick = tmp_path / "sick"
    before = replica_of("a", 0)
    agent = before["agent-a-0"]
    before["agent-a-0"] = replace(agent, argv=(*agent.argv, "--sick", str(sick)))
    await shop.operations.converge(before)
    for name in before:
        await shop.reaches(name, "ready")
    sick.touch()
    await shop.reaches("agent-a-0", "unready")
    old = (await shop.reaches("engine-a-0", "ready")).state.pid
    after = {**replica_of("a", 0, spec="2"), "agent-a-0": replace(agent, argv=(*agent.argv, "--spec", "2"))}
    change = asyncio.get_running_loop().create_task(shop.operations.converge(after))
    beside = False
    while not change.done():
        engine, told = shop.supervisor.current("engine-a-0"), shop.supervisor.current("agent-a-0")
        assert engine is not None and told is not None
        beside |= told.spec == after["agent-a-0"] and engine.state.pid == old
        await asyncio.sleep(0.01)
    await change
    assert not beside
    assert phases_of(shop, *after) == ["ready", "ready"]


async def test_restart_of_an_unknown_process_lists_the_known_ones(shop: Shop) -> None:
    await shop.operations.converge({"one": tiny()})
    with pytest.raises(NoSuchProcess, match="there are: one"):
        await shop.operations.restart("two")


async def test_a_gateway_is_replaced_by_its_next_generation_without_a_gap(shop: Shop, tmp_path: Path) -> None:
    spec = tiny("gateway", "--takes-over", str(tmp_path / "pid"), role="gateway", takes_over=True)
    await shop.operations.converge({"gateway": spec})
    await shop.reaches("gateway", "ready")
    refused = 0
    restart = asyncio.get_running_loop().create_task(shop.operations.restart("gateway"))
    while not restart.done():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", spec.port)
            writer.close()
        except ConnectionRefusedError:
            refused += 1
        except ConnectionResetError:
            pass  # accepted by a process that ended before it answered: the tiny server hands no connection over
        await asyncio.sleep(0.01)
    await restart
    assert refused == 0
    await shop.settles("gateway.g2")


async def test_gateway_keeps_running_if_its_successor_fails(shop: Shop, tmp_path: Path) -> None:
    spec = tiny("gateway", "--takes-over", str(tmp_path / "pid"), role="gateway", takes_over=True)
    await shop.operations.converge({"gateway": spec})
    first = (await shop.reaches("gateway", "ready")).state.pid
    broken = replace(spec, argv=("/bin/false",))
    with pytest.raises(NotReadyAgain, match="gateway continues"):
        await shop.operations.converge({"gateway": broken})
    await shop.settles("gateway")
    assert psutil.pid_exists(first or 0)


async def test_next_controller_adopts_matching_processes_and_ends_others(shop: Shop) -> None:
    kept, stale = tiny("kept"), tiny("stale")
    await shop.operations.converge({"kept": kept, "stale": stale})
    pid = (await shop.reaches("kept", "ready")).state.pid
    old = (await shop.reaches("stale", "ready")).state.pid
    await shop.die()

    wanted = {"kept": kept, "stale": replace(stale, argv=(*stale.argv, "--spec", "2"))}
    successor = await Shop(shop.layout).open()
    try:
        found = fleet_processes(shop.layout, shop.ledger())
        plan = plan_adoption(found, sessions_of(found), shop.ledger(), [wanted])
        assert end_now(plan.end) == []
        successor.supervisor.adopt(plan.keep)
        await successor.operations.converge(wanted)
        assert (await successor.reaches("kept", "ready")).state.pid == pid
        assert (await successor.reaches("stale", "ready")).state.pid != old
        # An adopted process is watched like any other, although its exit status is not available.
        os.kill(pid or 0, signal.SIGKILL)
        await successor.reaches("kept", "starting")
        assert (await successor.reaches("kept", "ready")).state.last_exit == "exited"
        await successor.operations.stop_all()
    finally:
        await successor.die()
    assert fleet_processes(shop.layout, ProcessLedger()) == []


async def test_fleet_without_its_ledger_is_found_by_its_environment_mark(shop: Shop) -> None:
    """The controller was killed between starting a process and recording it."""
    await shop.operations.converge({"one": tiny()})
    pid = (await shop.reaches("one", "ready")).state.pid
    await shop.die()
    shop.layout.ledger_file.unlink()
    assert [(found.pid, found.name) for found in fleet_processes(shop.layout, ProcessLedger())] == [(pid, "one")]


async def test_a_fleet_without_a_controller_can_be_stopped(shop: Shop) -> None:
    await shop.operations.converge({"one": tiny(), "gateway": tiny("gateway", role="gateway")})
    for name in ("one", "gateway"):
        await shop.reaches(name, "ready")
    ledger = shop.ledger()
    await shop.die()
    told: list[str] = []
    assert await asyncio.to_thread(drain_all, shop.layout, ledger, 3.0, told.append) == []
    assert told == ["stopping gateway", "stopping one"]
    assert fleet_processes(shop.layout, ProcessLedger()) == []


async def test_next_attempt_also_waits_for_an_unready_process(shop: Shop) -> None:
    """Otherwise a second look at the same processes would call the change complete."""
    good = tiny("one")
    await shop.operations.wait_all_ready(await shop.operations.converge({"one": good}))
    never = replace(good, argv=("/bin/sleep", "600"), timing=Timing(start_s=0.5, drain_s=1))
    other = tiny("other")
    with pytest.raises(NotReadyAgain):
        await shop.operations.converge({"one": never, "other": other})
    waited_for = await shop.operations.converge({"one": never, "other": other})
    assert "one" in waited_for
    with pytest.raises(NotReadyAgain):
        await shop.operations.wait_all_ready(["one"])
    await shop.operations.wait_all_ready(await shop.operations.converge({"other": other}))
    assert await shop.operations.converge({"other": other}) == ()
