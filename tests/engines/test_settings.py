"""vLLM's command line, parsed as vLLM does."""

from pathlib import Path

import pytest

from functions.engines.sim.faults import Malformed
from functions.engines.sim.settings import parse_size, read_settings

INFERENCE_SERVICE = (
    *("--model=/models/base", "--served-model-name", "smollm2-135m", "base", "--port", "9", "--dtype", "bfloat16"),
    *("--max-model-len", "4k", "--max-num-seqs", "64", "--max-num-batched-tokens", "2K", "--enforce-eager"),
    *("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "32", "--max-lora-rank", "32"),
    *("--enable-prompt-tokens-details", "--enable-request-id-headers", "--max-num-queued-reqs", "128"),
    *("--scheduling-policy", "priority", "--shutdown-timeout", "30", "--gpu-memory-utilization", "0.9"),
)


def test_an_inference_services_arguments() -> None:
    settings = read_settings(INFERENCE_SERVICE, {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75"})
    limits = settings.limits
    assert settings.served_model_names == ("smollm2-135m", "base")
    assert (limits.max_model_len_tokens, limits.max_num_batched_tokens, limits.max_num_seqs) == (4000, 2048, 64)
    assert (limits.max_loras, limits.max_cpu_loras, limits.max_lora_rank) == (4, 32, 32)
    assert (limits.max_num_queued_reqs, limits.priority_scheduling) == (128, True)
    assert (settings.shutdown_timeout_s, settings.keep_alive_s) == (30, 75)
    assert settings.request_id_headers and settings.prompt_token_details
    assert settings.ignored == ("--gpu-memory-utilization", "0.9"), (
        "known to vLLM, of no use here: said and passed over"
    )


def test_underscores_are_dashes() -> None:
    assert read_settings(["--max_model_len=512"], {}).limits.max_model_len_tokens == 512


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("8k", 8000), ("8K", 8192), ("1M", 1 << 20), ("1.5k", 1500)]
)
def test_sizes_for_humans(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_without_lora_there_are_no_slots() -> None:
    assert read_settings(["--max-loras", "4"], {}).limits.max_loras == 0


def test_the_host_cache_is_as_large_as_the_slots_unless_said() -> None:
    assert read_settings(["--enable-lora", "--max-loras", "4"], {}).limits.max_cpu_loras == 4


@pytest.mark.parametrize(("value", "routes"), [("1", True), ("True", True), ("0", False), ("", False)])
def test_adapter_routes_are_switched_by_the_environment(value: str, routes: bool) -> None:
    assert read_settings([], {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": value}).lora_routes is routes


def test_the_context_comes_from_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    assert read_settings(["--model", str(tmp_path)], {}).limits.max_model_len_tokens == 2048


def test_faults_and_costs_from_the_start() -> None:
    flags = ["--sim-faults", '{"error_status": 503, "ratio": 0.5}', "--sim-malformed", "crlf", "--sim-step-ms", "20"]
    settings = read_settings(flags, {})
    assert (settings.faults.error_status, settings.faults.malformed) == (503, Malformed.CRLF)
    assert settings.costs.overhead_s == 0.02
