"""Admission queue seen by an exchange: a pool with room for one request at a time."""

import pytest
from prometheus_client import generate_latest

from functions.api.snapshot import AdmissionEntry, BandEntry
from functions.gateway.intake.routes import TOKENIZE
from tests.gateway import sse
from tests.gateway.engine_rig import Client, Play
from tests.gateway.hello import PUBLIC_END, PUBLIC_HELLO, finishes
from tests.gateway.rig import BOT_V1, POOL, catalogue, heartbeat

PROMISED = AdmissionEntry("p", ("*",), (BandEntry("interactive", 0.9, ttft_slo_ms=2000), BandEntry("batch", 0.1)))


@pytest.fixture
def p() -> Play:
    return small()


def small(policy: AdmissionEntry = PROMISED) -> Play:
    """Make a play whose pool has KV blocks for one of these requests; the prompt window does not limit them."""
    play = Play(admission=(policy,))
    beats(play)
    return play


def beats(p: Play, sequence: int = 1, kv_blocks: int = 1, prefill_ms: float = 0.001) -> None:
    beat = heartbeat("r0", sequence=sequence, kv_blocks_total=kv_blocks, prefill_ms_per_token=prefill_ms)
    p.gateway.receive_heartbeat(beat)


async def test_queued_stream_starts_at_its_turn_and_reports_queue_time(p: Play) -> None:
    p.ask()
    first = await p.connects()
    p.ask()
    await p.settle()
    waiting = p.client
    assert waiting.status is None and not p.dials and p.gateway.services.admission.waiting == 1
    p.rig.clock.forward(0.5)
    finishes(first)
    await p.settle()
    finishes(first)
    assert waiting.body == PUBLIC_HELLO + PUBLIC_END
    assert b"queue;dur=500.00, route;dur=0.00" in waiting.headers[b"server-timing"]
    assert p.quiet() and p.gateway.services.admission.waiting == 0


async def test_request_is_rejected_after_maximum_queue_time(p: Play) -> None:
    p.ask()
    await p.connects()
    p.ask()
    p.rig.clock.forward(1.0)  # half of the promised time
    p.gateway.sweep()
    assert p.client.status == 503 and p.client.error["code"] == "overloaded"
    assert int(p.client.headers[b"retry-after"]) >= 1
    assert b'shoal_shed_total{reason="queue_timeout"} 1.0' in generate_latest(p.gateway.services.metrics.registry)
    assert p.gateway.services.admission.waiting == 0


async def test_shorter_caller_deadline_limits_queue_time(p: Play) -> None:
    p.ask()
    await p.connects()
    p.ask(header_x_shoal_deadline_ms="300")
    p.rig.clock.forward(0.3)
    p.gateway.sweep()
    assert p.client.status in (503, 504)
    assert p.gateway.services.admission.waiting == 0


async def test_a_client_that_leaves_while_it_waits_frees_its_place_at_once(p: Play) -> None:
    p.ask()
    first = await p.connects()
    gone, last = p.ask(), p.ask()
    gone.client_left()
    assert p.gateway.services.admission.waiting == 1
    finishes(first)
    await p.settle()
    finishes(first)
    assert p.client.body == PUBLIC_HELLO + PUBLIC_END and last.ended
    assert p.quiet()


async def test_queued_request_is_rejected_when_the_process_stops(p: Play) -> None:
    p.ask()
    await p.connects()
    p.ask()
    p.gateway.cut_short()
    await p.settle()
    assert p.client.error["code"] == "restarting"
    assert p.gateway.services.admission.waiting == 0 and p.quiet()


async def test_a_retry_keeps_its_place(p: Play) -> None:
    p.gateway.receive_heartbeat(heartbeat("r1", kv_blocks_total=1, prefill_ms_per_token=0.001))
    p.ask()
    first = await p.connects()
    p.ask()
    first.refuses(503)
    await p.settle()
    assert len(p.dials) == 1, "the first, at the other replica"
    assert p.client.status is None and p.gateway.services.admission.waiting == 1


async def test_requests_that_compute_nothing_do_not_wait(p: Play) -> None:
    p.ask()
    await p.connects()
    client = Client()
    p.client = client
    p.ask(route=TOKENIZE, stream=False)
    await p.settle()
    assert p.gateway.services.admission.waiting == 0


async def test_new_policy_applies_to_later_requests(p: Play) -> None:
    p.ask()
    await p.connects()
    patient = AdmissionEntry("p", ("*",), (BandEntry("interactive", 0.9, ttft_slo_ms=2000, max_wait_ms=60_000),))
    p.gateway.swap(catalogue(2, admission=(patient,)))
    p.ask()
    p.rig.clock.forward(5.0)
    beats(p, sequence=2)
    p.gateway.sweep()
    assert p.client.status is None and p.gateway.services.admission.waiting == 1


async def test_queue_is_rejected_when_all_replicas_are_gone(p: Play) -> None:
    p.ask()
    await p.connects()
    p.ask()
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="draining"))
    p.gateway.sweep()
    assert p.client.status == 503


async def test_queue_depth_is_in_the_metrics(p: Play) -> None:
    p.ask()
    await p.connects()
    p.ask(max_tokens=5)
    page = generate_latest(p.gateway.services.metrics.registry).decode()
    assert f'shoal_queue_requests{{band="interactive",pool="{POOL}"}} 1.0' in page
    depth = next(
        line for line in page.splitlines() if line.startswith("shoal_queue_depth_tokens{") and "interac" in line
    )
    assert float(depth.split()[1]) >= 5
    assert f'shoal_queue_seconds_count{{class="interactive",pool="{POOL}"}} 1.0' in page


async def test_long_queue_is_rejected_when_the_pool_is_gone(p: Play) -> None:
    p.ask()
    await p.connects()
    clients = []
    for _ in range(300):
        p.ask()
        clients.append(p.client)
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="draining"))
    p.gateway.sweep()
    await p.settle()
    assert {client.status for client in clients} == {503}
    assert p.gateway.services.admission.waiting == 0


async def test_first_tokens_make_room_for_the_next_prompt() -> None:
    p = Play(admission=(PROMISED,))
    beats(p, kv_blocks=10**6, prefill_ms=1000.0)  # one prompt at a time
    p.ask()
    first = await p.connects()
    p.ask()
    await p.settle()
    assert p.gateway.services.admission.waiting == 1
    first.begins_stream()
    first.streams(sse.role(BOT_V1), sse.token(BOT_V1, "hello"))
    await p.settle()
    assert p.gateway.services.admission.waiting == 0
