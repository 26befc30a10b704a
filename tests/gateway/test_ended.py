"""End of a request: one record, made once and given to each listener in order, even if another listener fails."""

import logging
from dataclasses import replace

import msgspec
import pytest

from functions.api.ids import TenantId
from functions.gateway.request.request import Ended
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing, finishes
from tests.gateway.rig import BOT_V1, heartbeat

ACME = TenantId("acme")


def listening(p: Play) -> list[Ended]:
    """Add a first listener and return the list of what it receives."""
    given: list[Ended] = []
    listeners = (given.append, *p.gateway.services.end_listeners)
    p.gateway.services = replace(p.gateway.services, end_listeners=listeners)
    return given


async def test_stream_ends_once_with_its_usage(play: Playing) -> None:
    p = play("r0")
    given = listening(p)
    exchange = p.ask(stream=True)
    finishes(await p.connects())
    exchange.client_left()
    exchange.cut_off()
    (ended,) = given
    assert (ended.status, ended.code, ended.begun, ended.attempts, ended.failures) == (200, "", True, 1, ())
    assert ended.usage is not None and ended.usage.completion_tokens == 2
    assert ended.worked and ended.spent.kv_token_seconds >= 0.0
    assert ended.prediction is not None and ended.prediction.replica.id == "r0"
    with pytest.raises(AttributeError):
        ended.status = 500  # type: ignore[misc]


async def test_client_that_leaves_ends_once(play: Playing) -> None:
    p = play("r0")
    given = listening(p)
    exchange = p.ask()
    await p.connects()
    exchange.client_left()
    exchange.client_left()
    assert [(ended.status, ended.begun, ended.usage) for ended in given] == [(499, False, None)]
    assert exchange.ticket is None and p.quiet()


@pytest.mark.parametrize("place", range(8))
async def test_failing_listener_does_not_stop_the_others(
    play: Playing, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    p = play("r0")
    given = listening(p)

    def fails(ended: Ended) -> None:
        raise RuntimeError("a listener's own mistake")

    listeners = list(p.gateway.services.end_listeners)
    listeners.insert(1 + place, fails)
    p.gateway.services = replace(p.gateway.services, end_listeners=tuple(listeners))
    p.ask(stream=False)
    with caplog.at_level(logging.ERROR):
        (await p.connects()).answers(200, sse.whole(BOT_V1))
    services = p.gateway.services
    assert p.client.status == 200 and len(given) == 1
    assert "end listener" in caplog.text and "a listener's own mistake" in caplog.text
    assert p.quiet() and p.requests(200) == 1 and services.quotas.in_flight(ACME) == 0
    assert services.quotas.settled_by_engine.requests == 1 and len(services.traces.recent) == 1
    assert sum(pool_queue.admission.gate.running for pool_queue in services.admission._pool_queues.values()) == 0


async def test_failure_before_any_attempt_is_logged_with_its_code(
    play: Playing, caplog: pytest.LogCaptureFixture
) -> None:
    p = play("r0")
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="draining"))
    p.ask()
    assert p.client.status == 503
    assert "ended with 503 (no_capacity)" in caplog.text


async def test_an_ended_request_has_every_field(play: Playing) -> None:
    """A field that is never filled would mislead listeners."""
    p = play("r0")
    given = listening(p)
    p.ask(stream=True)
    finishes(await p.connects())
    told = msgspec.structs.asdict(given[0])
    absent = {name for name, value in told.items() if value is None}
    assert absent == {"cascade_spend", "cascade", "prefill", "split"}, "these belong to cascades and prefill pools"
