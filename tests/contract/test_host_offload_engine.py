"""Offload of KV blocks to host memory, attempted with vLLM for CPU: both of its connectors end at their start.

docs/explanation/host-memory.md says so, and that what it has of vLLM's events and metrics is from the source. A vLLM
that starts makes this fail: then offload is to be tried as it is with the simulated engine
(tests/replica/test_agent_host_memory.py), and the page and this file say what was seen.
"""

import os
from pathlib import Path

import pytest

from tests.contract.servers import model_dir, serving_model

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(400)]

ATTEMPTS = {
    "native": ({}, "CPU Offloading is currently only supported on CUDA-alike and XPU GPUs"),
    "simple": (
        {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"},
        "type object '_StreamPlaceholder' has no attribute 'priority_range'",
    ),
}


@pytest.mark.skipif(
    not (model_dir() and os.environ.get("SHOAL_ENGINE_PYTHON")),
    reason="SHOAL_ENGINE_PYTHON and SHOAL_BASE_MODEL_DIR are not set: `make soak` prepares both, and sets them",
)
@pytest.mark.parametrize("connector", ATTEMPTS)
def test_vllm_for_cpu_offloads_nothing_to_host_memory(
    connector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, reason = ATTEMPTS[connector]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "engine.log"
    arguments = ("--max-model-len", "1024", "--kv-offloading-size", "1")
    with pytest.raises(AssertionError, match="vllm did not start"), serving_model(str(model_dir()), log, *arguments):
        pytest.fail(f"vLLM for CPU starts with its {connector} connector now: see the prologue for what is to be done")
    assert reason in log.read_text(errors="replace")
