"""Offload of KV blocks to host memory with vLLM for CPU: both of its connectors fail at startup.

docs/explanation/host-memory.md says so, and that its facts about vLLM's events and metrics come from the source. If a
later vLLM starts, this test fails. Then test offload as with the simulated engine
(tests/replica/test_agent_host_memory.py), and update the page and this file with the result.
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
        pytest.fail(f"vLLM for CPU starts with its {connector} connector now: the module's docstring says what to do")
    assert reason in log.read_text(errors="replace")
