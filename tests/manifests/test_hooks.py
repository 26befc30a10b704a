"""Probe and hook scripts of the engine container, run as the kubelet runs them, against the agent's real routes."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from functions.replica.accelerators import own_devices
from functions.replica.app import Drain, make_app
from functions.replica.status import AgentStatus, EngineLoad
from tests.manifests.rendering import MANIFESTS, Rendering
from tests.replica.statuses import Clock, make_status

HOOKS = MANIFESTS / "base" / "models" / "hooks"
_PATIENCE_S = 60.0


async def _no_engine_metrics() -> bytes:
    return b""


@contextlib.asynccontextmanager
async def serving(
    status: AgentStatus, *, drain_timeout_s: float = 3000.0, drain: Drain | None = None
) -> AsyncIterator[str]:
    """Serve the agent's routes and yield their address."""
    drain = drain or Drain(status, timeout_s=drain_timeout_s)
    app = make_app(status, drain, lambda: b"", _no_engine_metrics)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def start(hook: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-I", str(HOOKS / hook), *arguments)


async def code_of(process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(_PATIENCE_S):
        return await process.wait()


async def test_a_good_engine_lives() -> None:
    async with serving(make_status()) as agent:
        assert await code_of(await start("livez.py", f"{agent}/engine/livez")) == 0


async def test_a_condemned_engine_is_ended() -> None:
    async with serving(make_status(condemned="hung for 30 s: no token")) as agent:
        assert await code_of(await start("livez.py", f"{agent}/engine/livez")) == 1


async def test_an_agent_that_does_not_answer_does_not_condemn() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert await code_of(await start("livez.py", f"http://127.0.0.1:{port}/engine/livez")) == 0
    assert await code_of(await start("livez.py", f"http://127.0.0.1:{port}/engine/livez")) == 0


async def test_a_wrong_answer_does_not_condemn() -> None:
    async with serving(make_status(condemned="hung")) as agent:
        assert await code_of(await start("livez.py", f"{agent}/no-such-route")) == 0


async def test_the_engine_is_held_until_its_last_request_is_done() -> None:
    clock = Clock()
    status = make_status(clock=clock, load=EngineLoad(running=1))
    async with serving(status) as agent:
        hook = await start("drain.py", f"{agent}/drain")
        async with asyncio.timeout(_PATIENCE_S):
            while not status.draining:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)  # real time, to see that the hook does not end while a request runs
        assert hook.returncode is None
        status.load, status.load_read_s = EngineLoad(), clock.now_s + 60
        assert await code_of(hook) == 0


async def test_a_hung_engine_is_let_go_and_its_successor_takes_work_again() -> None:
    """The kubelet also runs preStop before it restarts only the engine. The drain must end with that restart;
    otherwise the agent drains for the life of the pod, and a pool whose engines restarted once is lost."""
    status = make_status("hung", condemned="hung for 30 s: no token", load=EngineLoad(running=1))
    drain = Drain(status, timeout_s=3000.0)
    async with serving(status, drain=drain) as agent:
        assert await code_of(await start("drain.py", f"{agent}/drain")) == 0
    assert status.draining
    drain.engine_is_new()
    assert not status.draining


async def test_the_agents_own_limit_ends_the_wait() -> None:
    clock = Clock()
    status = make_status(clock=clock, load=EngineLoad(running=1))
    async with serving(status, drain_timeout_s=5.0) as agent:
        hook = await start("drain.py", f"{agent}/drain")
        async with asyncio.timeout(_PATIENCE_S):
            while not status.draining:
                await asyncio.sleep(0.02)
        clock.now_s += 6
        assert await code_of(hook) == 1


async def test_without_an_agent_nothing_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert await code_of(await start("drain.py", f"http://127.0.0.1:{port}/drain")) == 1


@pytest.mark.parametrize("hook", sorted(path.name for path in HOOKS.glob("*.py")))
def test_the_pods_get_this_very_script(hook: str, staging: Rendering, production: Rendering) -> None:
    for rendering in (staging, production):
        data = rendering.one("ConfigMap", "engine-hooks", "shoal-models")["data"]
        assert data[hook] == Path(HOOKS / hook).read_text()


async def test_the_agent_is_told_which_accelerators_are_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "engine"
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-aa,GPU-bb")
    assert await code_of(await start("devices.py", str(file))) == 0
    assert own_devices(file) == ("GPU-aa", "GPU-bb")
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES")
    assert await code_of(await start("devices.py", str(file))) == 0
    assert own_devices(file) == ()


async def test_engine_starts_without_its_agents_folder(tmp_path: Path) -> None:
    assert await code_of(await start("devices.py", str(tmp_path / "not-there" / "engine"))) == 0
