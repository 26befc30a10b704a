"""Fairness charges for every end of a request: leaving early gains nothing, and a failure costs nothing."""

from collections.abc import Callable

import pytest

from functions.api.ids import TenantId
from functions.decisions.admission.ticket import cost_tokens
from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import HELLO, Playing
from tests.gateway.rig import BOT_V1, quota
from tests.gateway.test_admission_queue import small

ACME = TenantId("acme")
ANSWER_TOKENS = 300


def charged(p: Play) -> float:
    """Return the tenant's virtual service; its weight is 1."""
    [(_, admission, _)] = p.gateway.services.admission.figures()
    return admission.queues[0].flows[ACME].counter


def expected(p: Play) -> tuple[int, int]:
    assert p.exchange is not None
    features = p.exchange.admitted.features
    return features.prompt_tokens, features.expected_output_tokens


async def leaves_mid_stream(p: Play, tokens: int) -> None:
    assert p.exchange is not None
    p.engine.begins_stream()
    p.engine.streams(HELLO, *[sse.token(BOT_V1, "x")] * (tokens - 1))
    p.exchange.client_left()


@pytest.mark.parametrize("tokens", [1, ANSWER_TOKENS])
async def test_disconnect_mid_stream_is_charged_for_prompt_and_streamed_tokens(play: Playing, tokens: int) -> None:
    p = play("r0")
    p.ask(max_tokens=20, messages=[{"role": "user", "content": "word " * 1000}])
    await p.connects()
    prompt_tokens, expected_tokens = expected(p)
    assert prompt_tokens > 500 and expected_tokens < ANSWER_TOKENS
    await leaves_mid_stream(p, tokens)
    assert charged(p) == cost_tokens(prompt_tokens, tokens)


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_before_the_first_byte_is_charged_as_expected(play: Playing, stream: bool) -> None:
    p = play("r0")
    exchange = p.ask(stream=stream)
    await p.connects()
    exchange.client_left()
    assert charged(p) == cost_tokens(*expected(p)) > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_right_after_sending_is_charged_for_the_prompt(play: Playing, stream: bool) -> None:
    p = play("r0", quotas=(quota(input_tokens_per_minute=60_000),))
    exchange = p.ask(stream=stream)
    await p.connects()
    exchange.client_left()
    labels = {"kind": "input", "by": "count"}
    counted = p.gateway.services.metrics.registry.get_sample_value("shoal_quota_settled_tokens_total", labels)
    assert counted == expected(p)[0] > 0


async def test_callers_deadline_is_charged_as_expected(play: Playing) -> None:
    p = play("r0")
    p.ask(header_x_shoal_deadline_ms="300")
    await p.connects()
    p.after(0.3)
    assert p.client.status == 504
    assert charged(p) == cost_tokens(*expected(p))


async def test_disconnect_before_an_engine_has_the_request_is_free(play: Playing) -> None:
    p = play("r0")
    exchange = p.ask()
    await p.settle()
    assert charged(p) > 0
    exchange.client_left()
    assert charged(p) == 0, "while it was dialled"


async def test_disconnect_while_queued_is_free() -> None:
    p = small()
    p.ask()
    await p.connects()
    before = charged(p)
    waiting = p.ask()
    assert p.gateway.services.admission.waiting == 1
    waiting.client_left()
    assert charged(p) == before


def dies(p: Play) -> None:
    p.engine.dies()


def is_full(p: Play) -> None:
    p.engine.refuses(503)


def says_nothing(p: Play) -> None:
    p.after(61.0)


@pytest.mark.parametrize("end", [dies, is_full, says_nothing])
async def test_request_failed_by_every_engine_is_free(play: Playing, end: Callable[[Play], None]) -> None:
    p = play("r0")
    p.ask()
    await p.connects()
    end(p)
    await p.settle()
    assert p.client.ended and p.client.status != 200
    assert charged(p) == 0


async def test_disconnect_during_a_retry_is_charged_once(play: Playing) -> None:
    p = play("r0", "r1")
    exchange = p.ask()
    await p.connects()
    p.engine.dies()
    await p.connects()
    exchange.client_left()
    assert charged(p) == cost_tokens(*expected(p))


async def test_a_stream_that_breaks_is_charged_as_delivered(play: Playing) -> None:
    p = play("r0")
    p.ask()
    await p.connects()
    p.engine.begins_stream()
    p.engine.streams(HELLO, *[sse.token(BOT_V1, "x")] * 9)
    p.engine.dies()
    assert charged(p) == cost_tokens(expected(p)[0], 10)
