"""A pool with an embedding model is added to a running fleet by a push, becomes ready, answers, and is removed.

Its agent's probes differ: an engine for embeddings lacks the routes by which a text engine is probed.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleets import Fleet, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

BASE, VECTORS = "smollm2-135m", "vectors"
SERVICES, MODELS, TENANTS = (f"inferenceservices/{BASE}.yaml", "registry/models.yaml", "policies/tenants.yaml")
POOL_FILE = f"inferenceservices/{VECTORS}.yaml"
READY_WITHIN_S = 400.0  # vLLM compiles for over two minutes beside running engines


@pytest.fixture(params=["sim_fleet", pytest.param("vllm_replica", marks=[pytest.mark.engine, pytest.mark.soak])])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Add the pool to the fleet, and remove it after the test."""
    fleet: Fleet = request.getfixturevalue(request.param)
    before = {path: fleet.read(path) for path in (MODELS, TENANTS)}
    model = _model_of(fleet) if request.param == "vllm_replica" else BASE
    base = before[MODELS].partition("---")[0]
    more = base.replace(f"name: {BASE}", f"name: {VECTORS}").replace(f"id: {BASE}", f"id: {VECTORS}")
    more = more.replace(f"pvc://shoal-models/{BASE}", f"pvc://shoal-models/{model}")
    _push(
        fleet,
        {
            POOL_FILE: _pool(fleet.read(SERVICES), model),
            MODELS: f"{before[MODELS]}---\n{more}",
            TENANTS: before[TENANTS].replace('["acme/*"', f'["{VECTORS}", "acme/*"'),
        },
    )
    yield fleet
    _push(fleet, {POOL_FILE: None, **before})
    wait_until("the fleet is as before", fleet.is_applied, 120)


def _push(fleet: Fleet, files: dict[str, str | bytes | None]) -> None:
    pushed = fleet.push(files)
    assert pushed.returncode == 0, pushed.stderr


def _pool(demo: str, model: str) -> str:
    """Return the demo's InferenceService for embeddings.

    Text weights serve too: their last hidden state is used as the vector.
    """
    head, _, arguments = demo.partition("      args:\n")
    _, _, rest = arguments.partition("      env:\n")
    head = head.replace(f"name: {BASE}", f"name: {VECTORS}")
    head = head.replace(f"shoal.dev/pool: {BASE}}}", f"shoal.dev/pool: {VECTORS}}}")  # in its topologySpreadConstraints
    head = head.replace(f"shoal.dev/pool: {BASE}", f"shoal.dev/pool: {VECTORS}\n    shoal.dev/task: embed")
    head = head.replace(f"pvc://shoal-models/{BASE}", f"pvc://shoal-models/{model}")
    flags = ["--runner=pooling", "--max-model-len=256", "--max-num-seqs=8", "--dtype=float32"]
    flags += ["--convert=embed"] if model == BASE else []
    listed = "".join(f"        - {flag}\n" for flag in flags)
    return f"{head}      args:\n{listed}      env:\n{rest}"


def _model_of(fleet: Fleet) -> str:
    """Return an embedding model if there is one, else the base model's weights."""
    found = os.environ.get("SHOAL_EMBEDDING_MODEL_DIR")
    if not found:
        return BASE
    (fleet.state_dir / "models" / VECTORS).symlink_to(Path(found).absolute())
    return VECTORS


def test_an_embedding_pool_becomes_ready_and_answers(fleet: Fleet) -> None:
    wait_until("the pool is ready", lambda: _is_ready(fleet), READY_WITHIN_S, every_s=0.2)
    with fleet.client() as client:
        answer = client.post("/embeddings", json={"model": VECTORS, "input": ["a cat", "a cat", "the sea"]})
        assert answer.status_code == 200, answer.text
        one, same, other = (item["embedding"] for item in answer.json()["data"])
        assert one == pytest.approx(same, abs=1e-3) and one != pytest.approx(other, abs=1e-3)
        chat = client.post("/chat/completions", json={"model": VECTORS, "messages": [{"role": "user", "content": "x"}]})
        assert (chat.status_code, chat.json()["error"]["code"]) == (400, "wrong_model_type")


def _is_ready(fleet: Fleet) -> bool:
    phases = [each["phase"] for each in fleet.replicas() if each["pool"] == VECTORS]
    return bool(phases) and set(phases) == {"ready"}
