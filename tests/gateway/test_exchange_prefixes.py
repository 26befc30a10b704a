"""Prefixes in a whole request: used for routing, recorded, learnt and forgotten."""

from typing import Any

from tests.gateway import sse
from tests.gateway.engine_rig import Play
from tests.gateway.hello import Playing
from tests.gateway.rig import BOT_V1, POOL, heartbeat

REPLICAS = ("r0", "r1", "r2", "r3")


def conversation(number: int, turns: int) -> list[dict[str, str]]:
    rules = {"role": "system", "content": f"Rules.of.house.{number}: " * 100}
    said = [{"role": "user", "content": f"turn {turn} of {number}. " * 10} for turn in range(turns)]
    return [rules, *said]


def whole(prompt_tokens: int, cached_tokens: int) -> bytes:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2}
    usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}  # type: ignore[assignment]
    return sse.whole(BOT_V1).replace(b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}', b"%b") % (
        b'"usage":' + sse.compact(usage)
    )


async def answered(p: Play, messages: list[dict[str, Any]], answer: bytes) -> bytes:
    """Run one request and return the name of the replica that answered."""
    p.ask(stream=False, messages=messages, header_x_request_id=f"request-{len(messages)}-{messages[0]['content'][:16]}")
    await p.settle()
    engine = await p.connects() if p.dials else next(engine for engine in p.engines if engine.connection._answer)
    engine.answers(200, answer)
    assert p.client.status == 200
    return p.client.headers[b"x-shoal-replica"]


def counted(p: Play, name: str, **labels: str) -> float:
    return p.gateway.services.metrics.registry.get_sample_value(name, {"pool": POOL, **labels}) or 0.0


async def test_a_conversation_stays_where_its_prefix_is(play: Playing) -> None:
    p = play(*REPLICAS)
    homes = [await answered(p, conversation(number, 1), sse.whole(BOT_V1)) for number in range(8)]
    assert len(set(homes)) > 1, "conversations spread"
    again = [await answered(p, conversation(number, 2), sse.whole(BOT_V1)) for number in range(8)]
    assert again == homes


async def test_prefix_predictions_are_compared_with_the_engines_count(play: Playing) -> None:
    p = play(*REPLICAS)
    await answered(p, conversation(1, 1), whole(600, 0))
    assert counted(p, "shoal_prefix_predicted_tokens_total") == 0
    await answered(p, conversation(1, 2), whole(660, 512))
    predicted = counted(p, "shoal_prefix_predicted_tokens_total")
    assert 400 < predicted < 600
    over = counted(p, "shoal_prefix_misjudged_tokens_total", direction="over")
    under = counted(p, "shoal_prefix_misjudged_tokens_total", direction="under")
    assert predicted - over + under == 512
    p.rig.gauges.scrape()
    assert 0.4 < counted(p, "shoal_prefix_hit_ratio") < 0.42  # 512 of 1,260


async def test_only_complete_answers_teach_lengths(play: Playing) -> None:
    p = play("r0")
    lengths = p.gateway.services.intake.features.lengths
    p.ask(stream=True)
    engine = await p.connects()
    engine.begins_stream()
    engine.streams(sse.token(BOT_V1, "hello"))
    assert p.exchange is not None
    p.exchange.client_left()
    assert len(lengths) == 0
    await answered(p, conversation(1, 1), whole(600, 0))
    assert len(lengths) == 2, "of prompts and of answers, one each"


async def test_prefixes_of_an_ended_engine_are_forgotten(play: Playing) -> None:
    p = play("r0")
    await answered(p, conversation(1, 1), whole(600, 0))
    assert len(p.gateway.services.prefixes) > 0
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=2, phase="dead"))
    p.gateway.receive_heartbeat(heartbeat("r0", sequence=3))
    await answered(p, conversation(1, 2), whole(660, 0))
    assert counted(p, "shoal_prefix_predicted_tokens_total") == 0
