"""The real engine, forked from a process that has imported it: it answers normally, and all of it stops."""

import os
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from functions.controller.local.adoption import fleet_processes
from functions.controller.local.children import session_members
from functions.controller.local.instances import Instance, ProcessLedger
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool, Target
from functions.controller.local.spec import ProcessSpec
from tests.controller.conftest import Shop, free_port
from tests.controller.test_plan import CONTEXT

pytestmark = [
    pytest.mark.servers,
    pytest.mark.engine,
    pytest.mark.soak,
    pytest.mark.own_engines,
    pytest.mark.timeout(1500),
]
START_S = 600.0
ARGS = ("--dtype=float32", "--max-model-len=1024", "--enable-lora", "--max-loras=1", "--max-lora-rank=16")
ENV = (
    ("HF_HUB_OFFLINE", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("VLLM_NO_USAGE_STATS", "1"),
)


def planned(layout: StateLayout, replicas: int) -> dict[str, ProcessSpec]:
    """Plan the engines and the parked process of a fleet, without the rest."""
    model = Path(os.environ["SHOAL_BASE_MODEL_DIR"])
    context = replace(
        CONTEXT,
        layout=layout,
        ports=replace(CONTEXT.ports, engines=PORT),
        engine_python=Path(os.environ["SHOAL_ENGINE_PYTHON"]),
        models_root=model.parent,
        parked_engines=1,
    )
    specs = plan_fleet(context, [Pool("a", replicas, model.name, ARGS, ENV)], Target("vllm"), {})
    kept = {name: spec for name, spec in specs.items() if spec.role in ("engine", "parked")}
    return {name: replace(spec, liveness=None, stops_before=()) for name, spec in kept.items()}


PORT = free_port()


@pytest.mark.skipif(
    not (os.environ.get("SHOAL_ENGINE_PYTHON") and os.environ.get("SHOAL_BASE_MODEL_DIR")),
    reason="no real engine: SHOAL_ENGINE_PYTHON and SHOAL_BASE_MODEL_DIR are unset; `make up` prepares both",
)
async def test_vllm_is_forked_answers_and_leaves_nothing(shop: Shop, layout: StateLayout) -> None:
    (name,) = planned(layout, 0)
    await shop.operations.converge(planned(layout, 0))
    await shop.reaches(name, "ready", START_S)
    for _ in range(2):
        await shop.operations.converge(planned(layout, 1))
        engine = await shop.reaches("engine-a-0", "ready", START_S)
        assert engine.child is not None and engine.child.process is None, "forked"
        await _answers(engine)
        session = engine.child.pid
        await shop.operations.converge(planned(layout, 0))
        assert not session_members(session)
    await shop.operations.stop_all()
    assert not fleet_processes(layout, ProcessLedger())


async def _answers(engine: Instance) -> None:
    asked = {"model": "a", "prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    async with httpx.AsyncClient(timeout=120) as client:
        answer = await client.post(f"http://127.0.0.1:{engine.spec.port}/v1/completions", json=asked)
    assert "Paris" in answer.json()["choices"][0]["text"]
