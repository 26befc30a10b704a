"""A compile cache in the store spares the next node the compilation, with real vLLM on CPU.

The pool has no adapters: with `--enable-lora` vLLM compiles nothing on CPU. The second node is the first one after
its weights, compile cache and processes were removed; only the store remains.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.fleets import Fleet, running_fleet, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.own_engines, pytest.mark.soak, pytest.mark.timeout(2400)]

POOL = "smollm2-135m"
TARGET = f"{POOL}@v1"
SERVICE = f"inferenceservices/{POOL}.yaml"
ENGINE, ACCELERATOR = "0.32.0", "cpu"
START_S = 900.0  # start of an engine that compiles on two cores
MODEL = """\
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: smollm2-135m}}
spec:
  id: smollm2-135m
  type: base
  versions:
    {line}
  channels: {{stable: v1}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Start a fleet with simulated engines, which need no weights; the test pushes those later."""
    base = os.environ.get("SHOAL_BASE_MODEL_DIR", "")
    if not base:
        pytest.skip("SHOAL_BASE_MODEL_DIR is not set: `make soak` prepares engine and base model, and sets it")
    (tmp_path / "state" / "models").mkdir(parents=True)
    (tmp_path / "state" / "models" / POOL).symlink_to(Path(base).absolute())  # otherwise `shoal up` creates it
    project = without_scaling(without_limits(project_with(tmp_path / "project", PATIENT)))
    with running_fleet(tmp_path / "state", "sim", 1, project) as fleet:
        yield fleet


def service() -> str:
    """Return the demo's InferenceService with one replica, weights from the store and no adapters."""
    text = Path(SERVICE).read_text()
    kept = [line for line in text.splitlines() if "lora" not in line and "--max-cpu-loras" not in line]
    told = yaml.safe_load("\n".join(kept))
    told["spec"]["predictor"]["minReplicas"] = 1
    told["spec"]["predictor"]["model"]["storageUri"] = f"shoal://{TARGET}"
    return yaml.safe_dump(told)


def cold_start(fleet: Fleet) -> dict[str, float]:
    """Wait until the replica serves and return the seconds of its cold start by stage."""

    def stages() -> dict[str, float]:
        rows = [row for row in fleet.replicas() if row["phase"] == "ready" and row["age_s"] < 5]
        return dict(rows[0]["cold_start"]) if rows else {}

    wait_until("a replica serves, and its start is measured", lambda: bool(stages()), START_S, every_s=1.0)
    found = stages()
    print(", ".join(f"{stage} {took_s:.1f}" for stage, took_s in found.items()) + f"; {sum(found.values()):.1f} s")
    return found


def said(fleet: Fleet) -> str:
    message = {"role": "user", "content": "What is the capital of France?"}
    with fleet.client(timeout_s=120.0) as client:
        answer = client.post(
            "/chat/completions", json={"model": POOL, "messages": [message], "max_tokens": 12, "temperature": 0}
        )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def shoal(fleet: Fleet, *arguments: str) -> str:
    done = fleet.shoal(*arguments, timeout_s=START_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def log_of(fleet: Fleet) -> str:
    return (fleet.state_dir / "logs" / f"engine-{POOL}-0.log").read_text(errors="replace")


def test_the_second_node_compiles_nothing(fleet: Fleet) -> None:
    pushed = json.loads(shoal(fleet, "base", "push", TARGET, os.environ["SHOAL_BASE_MODEL_DIR"], "-o", "json"))
    files = {SERVICE: service(), "registry/models.yaml": MODEL.format(line=pushed["line"])}
    changed = fleet.push(files, "weights by name")
    assert changed.returncode == 0, changed.stderr
    shoal(fleet, "down")
    shoal(fleet, "up", "--engine", "vllm")
    before = cold_start(fleet)
    answer = said(fleet)

    cache = fleet.state_dir / "cache"
    root = cache / "compiled" / TARGET
    packed: dict[str, Any] = json.loads(
        shoal(
            fleet, "base", "compiled", TARGET, str(root), "--engine", ENGINE, "--accelerator", ACCELERATOR, "-o", "json"
        )
    )
    print(f"{packed['size_bytes'] / 1e6:.1f} MB packed, keys {packed['keys']}")
    assert packed["weights"] == pushed["digest"] and packed["keys"]

    shoal(fleet, "down")
    shutil.rmtree(cache)
    (fleet.state_dir / "models" / TARGET).unlink()
    (fleet.state_dir / "logs" / f"engine-{POOL}-0.log").unlink()
    shoal(fleet, "up", "--engine", "vllm")
    after = cold_start(fleet)
    assert "Directly load AOT compilation from path" in log_of(fleet)
    assert after["compile"] < before["compile"] / 2, "the compilation itself is gone; what is left is a first run"
    assert said(fleet) == answer
