from math import inf

import pytest

from functions.api.ids import TenantId
from functions.decisions.admission.ticket import Ticket
from functions.decisions.admission.window import ReadingWindow


def ticket(prompt_tokens: int, *, streams: bool = True) -> Ticket:
    return Ticket(1, TenantId("a"), 1.0, 0, prompt_tokens, prompt_tokens, prompt_tokens, 99.0, 0.0, streams)


def test_worked_example_of_the_window() -> None:
    window = ReadingWindow(0.0)
    window.record_prefill_end(ticket(0), took_s=0.03)
    window.tick(1.0, 8, 20_000.0, slo_s=0.5, full=False)
    assert window.per_replica_tokens == pytest.approx(2_500)


def test_unknown_window_does_not_limit() -> None:
    assert ReadingWindow(0.0).per_replica_tokens == inf


def test_own_throughput_counts_if_it_exceeds_the_agents_measurement() -> None:
    window = ReadingWindow(0.0)
    window.record_prefill_end(ticket(50_000), took_s=0.01)
    window.tick(1.0, 1, 20_000.0, slo_s=0.5, full=False)
    assert window.per_replica_tokens == pytest.approx(50_000 * 0.125)


def test_idle_second_does_not_lower_the_rate_and_a_full_one_does() -> None:
    window = ReadingWindow(0.0)
    window.record_prefill_end(ticket(50_000), took_s=0.01)
    window.tick(1.0, 1, 1_000.0, slo_s=0.5, full=False)
    window.tick(2.0, 1, 1_000.0, slo_s=0.5, full=False)
    assert window.per_replica_tokens == pytest.approx(50_000 * 0.125)
    window.record_prefill_end(ticket(20_000), took_s=0.01)
    window.tick(3.0, 1, 1_000.0, slo_s=0.5, full=True)
    assert window.per_replica_tokens == pytest.approx(41_000 * 0.125)


def test_a_slow_engine_is_not_full_with_one_request() -> None:
    window = ReadingWindow(0.0)
    window.record_prefill_end(ticket(0), took_s=0.6)
    window.tick(1.0, 1, 600.0, slo_s=0.5, full=False)
    assert window.per_replica_tokens == pytest.approx(600 * 1.8)


def test_minimum_prefill_time_expires() -> None:
    window = ReadingWindow(0.0)
    window.record_prefill_end(ticket(0), took_s=0.6)
    for now_s in (1.0, 31.0, 62.0):
        window.tick(now_s, 1, 1000.0, slo_s=0.5, full=False)
    assert window.per_replica_tokens == pytest.approx(125)


def test_prompts_without_streaming_count_as_read_after_their_predicted_time() -> None:
    window = ReadingWindow(0.0)
    window.tick(1.0, 1, 1_000.0, slo_s=0.5, full=False)
    whole = ticket(500, streams=False)
    window.record_dispatch(whole, 2.0)
    assert window.pop_due(2.4) is None
    assert window.pop_due(2.5) is whole
    assert window.pop_due(9.9) is None
