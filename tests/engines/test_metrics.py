"""Parse an engine's metrics page, whatever it contains."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from functions.engines.errors import EngineGarbled
from functions.engines.metrics import MAX_PAGE_BYTES, parse_metrics
from tests.engines.servers import FrozenClock, assembled


def page(**changes: str) -> str:
    parts = assembled(FrozenClock(), "--enable-lora", "--max-loras", "3", "--block-size", "32")
    text = generate_latest(parts.registry).decode()
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def with_line(name: str, value: str) -> str:
    lines = page().splitlines()
    return "\n".join(f"{line.rpartition(' ')[0]} {value}" if line.startswith(name) else line for line in lines)


def test_the_simulators_own_page() -> None:
    metrics = parse_metrics(page())
    assert (metrics.running, metrics.waiting, metrics.kv_usage_ratio) == (0, 0, 0.0)
    assert (metrics.block_size_tokens, metrics.num_gpu_blocks, metrics.max_loras) == (32, 8192, 3)
    assert metrics.kv_capacity_tokens == 32 * 8192


def test_numbers_come_through() -> None:
    assert parse_metrics(with_line("vllm:num_requests_running{", "7.0")).running == 7
    assert parse_metrics(with_line("vllm:kv_cache_usage_perc{", "0.25")).kv_usage_ratio == 0.25
    assert parse_metrics(with_line("vllm:generation_tokens_total{", "1.5e+06")).generation_tokens_total == 1_500_000


def test_engines_of_one_server_add_up_and_the_fullest_counts() -> None:
    labels = '{engine="1",model_name="sim"}'
    second = f"vllm:num_requests_running{labels} 2\nvllm:kv_cache_usage_perc{labels} 0.9\n"
    metrics = parse_metrics(page() + second)
    assert (metrics.running, metrics.kv_usage_ratio) == (2, 0.9)


def test_newest_adapter_series_wins() -> None:
    labels = 'vllm:lora_requests_info{{max_lora="1",running_lora_adapters="{}",waiting_lora_adapters="{}"}} {}\n'
    old, new = labels.format("x", "", 1), labels.format("a,t/b@1", "c", 9e9)
    metrics = parse_metrics(page() + new + old)
    assert (metrics.running_adapters, metrics.waiting_adapters) == ({"a", "t/b@1"}, {"c"})


def test_without_lora_there_are_no_slots() -> None:
    lines = [line for line in page().splitlines() if "lora_requests_info" not in line]
    assert parse_metrics("\n".join(lines)).max_loras is None


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "<html>502</html>",
        "vllm:num_requests_running{engine=",
        with_line("vllm:num_requests_running{", "NaN"),
        with_line("vllm:kv_cache_usage_perc{", "+Inf"),
        with_line("vllm:generation_tokens_total{", "many"),
        page().replace("vllm:num_requests_waiting{", "vllm:other{"),
        "x" * (MAX_PAGE_BYTES + 1),
    ],
)
def test_invalid_metrics_page_is_garbled(garbage: str) -> None:
    with pytest.raises(EngineGarbled):
        parse_metrics(garbage)


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(0, 5000))
def test_a_damaged_page_is_read_or_garbled_and_never_anything_else(noise: str, at: int) -> None:
    text = PAGE[:at] + noise + PAGE[at + len(noise) :]
    try:
        metrics = parse_metrics(text)
    except EngineGarbled:
        return
    assert 0 <= metrics.kv_usage_ratio <= 1


PAGE = page()
