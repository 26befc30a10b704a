"""Prefixes: predicted cached tokens, from the policy's source, for as long as a replica can have them."""

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from functions.api.ids import PoolName, ReplicaId
from functions.decisions.routing.request import CachedPrompt
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.routes import CHAT
from functions.gateway.prefix.index import Prefixes
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.rig import ACME_KEY, GLOBEX_KEY, NOW_UNIX_S, PEPPER, POOL

INTAKE = Intake(PEPPER, rig.limits(), Splits(time.monotonic))
R0, R1 = ReplicaId("r0"), ReplicaId("r1")
SYSTEM = {"role": "system", "content": "Rules of the house: " * 100}


def chat(*turns: str, key: str = ACME_KEY, source: str = "sent") -> Admitted:
    messages = [SYSTEM, *({"role": "user", "content": turn} for turn in turns)]
    body = {"model": "acme/bot" if key == ACME_KEY else "globex/bot", "messages": messages, "max_tokens": 10}
    catalogue = rig.catalogue(routing=(rig.routing(prefix_source=source),))
    raw = RawRequest("r", rig.headers(key), json.dumps(body).encode())
    return INTAKE.admit(catalogue, CHAT, raw, INTAKE.recognise(catalogue, raw, NOW_UNIX_S))


def prefixes(**arguments: Any) -> Prefixes:
    known = Prefixes(**{"exact": None, "max_blocks": 100_000, "ttl_s": 600.0} | arguments)
    known.swap([POOL])
    return known


class Telling:
    def __init__(self, answer: Mapping[ReplicaId, int] | None) -> None:
        self.answer = answer

    def matched(self, admitted: Admitted) -> CachedPrompt | None:
        return CachedPrompt(self.answer) if self.answer is not None else None


def test_worked_example_of_the_prologue() -> None:
    known = prefixes()
    four = chat("x")
    features = msgspec.structs.replace(
        four.features, prompt_bytes=2048, prompt_tokens=564, prompt_exact=False, text_blocks=(1, 2, 3, 4)
    )
    three = msgspec.structs.replace(features, text_blocks=(1, 2, 3, 5))
    known.record_sent(msgspec.structs.replace(four, features=features), R0, 0.0)
    assert known.cached(msgspec.structs.replace(four, features=three), 0.0).tokens == {R0: 384}


def test_next_turn_is_predicted_at_the_last_replica() -> None:
    known = prefixes()
    first, second = chat("hello"), chat("hello", "and then?")
    assert known.cached(first, 0.0).tokens == {}
    known.record_sent(first, R0, 0.0)
    found = known.cached(second, 1.0).tokens
    assert set(found) == {R0}
    assert 0.6 * second.features.prompt_tokens < found[R0] < second.features.prompt_tokens


def test_predicted_tokens_are_less_than_the_prompt() -> None:
    known = prefixes()
    exact = chat("x")
    features = msgspec.structs.replace(
        exact.features, prompt_bytes=512, prompt_tokens=64, prompt_exact=True, text_blocks=(1,)
    )
    request = msgspec.structs.replace(exact, features=features)
    known.record_sent(request, R0, 0.0)
    assert known.cached(request, 0.0).tokens == {R0: 63}


def test_predictions_do_not_cross_tenants() -> None:
    known = prefixes()
    known.record_sent(chat("hello"), R0, 0.0)
    assert known.cached(chat("hello", key=GLOBEX_KEY), 0.0).tokens == {}


@pytest.mark.parametrize("phase", ["starting", "dead"])
def test_ended_engine_has_no_predicted_prefixes(phase: str) -> None:
    known = prefixes()
    known.receive_heartbeat(rig.heartbeat("r0"))
    known.receive_heartbeat(rig.heartbeat("r1"))
    known.record_sent(chat("hello"), R0, 0.0)
    known.record_sent(chat("hello"), R1, 0.0)
    known.receive_heartbeat(rig.heartbeat("r0", phase=phase))
    assert set(known.cached(chat("hello"), 0.0).tokens) == {R1}
    known.forget(R1)
    assert known.cached(chat("hello"), 0.0).tokens == {}


def test_small_cache_is_predicted_to_forget_early() -> None:
    known = prefixes()
    for name, blocks in (("r0", 100), ("r1", 100_000)):
        known.receive_heartbeat(rig.heartbeat(name, kv_blocks_total=blocks, kv_block_tokens=16))
    mine = chat("hello")
    known.record_sent(mine, R0, 0.0)
    for number in range(12):
        body = [SYSTEM | {"content": f"{number} other rules " * 100}]
        other = msgspec.structs.replace(mine, features=_features_of(body))
        known.record_sent(other, R0, 0.0)
    assert R0 not in known.cached(mine, 0.0).tokens, "30 kB of others went there since, and it holds 6.4"


def _features_of(messages: list[dict[str, Any]]) -> Any:
    model = rig.catalogue().resolve(rig.snapshot().tenants[0].name, "acme/bot")
    assert model is not None
    tenant = rig.snapshot().tenants[0].name
    return INTAKE.features.build({"messages": messages}, CHAT, model, tenant, "s", length_field="max_tokens")


@pytest.mark.parametrize("source", ["events", "bloom"])
def test_replica_reports_take_precedence_over_own_records(source: str) -> None:
    telling = Telling({R1: 77})
    known = prefixes(exact=telling)
    known.record_sent(chat("hello"), R0, 0.0)
    assert known.cached(chat("hello", source=source), 0.0).tokens == {R1: 77}
    telling.answer = {}
    assert known.cached(chat("hello", source=source), 0.0).tokens == {}, "nobody has it, and that is known"
    telling.answer = None
    assert set(known.cached(chat("hello", source=source), 0.0).tokens) == {R0}, "not known: the own record speaks"
    telling.answer = {R1: 77}
    assert set(known.cached(chat("hello", source="sent"), 0.0).tokens) == {R0}


def test_records_share_memory_between_pools_and_follow_the_snapshot() -> None:
    known = prefixes(max_blocks=1000)
    for number in range(200):
        known.record_sent(
            msgspec.structs.replace(chat("x"), features=_features_of([SYSTEM | {"content": f"{number} " * 999}])),
            R0,
            0.0,
        )
    assert 0 < len(known) <= 1500
    known.swap([POOL, PoolName("other")])
    assert len(known) > 0, "a pool that stays keeps its record"
    assert known._records[POOL].max_blocks == 500
    known.swap([PoolName("other")])
    assert len(known) == 0
    assert known.cached(chat("x"), 0.0).tokens == {}
    known.record_sent(chat("x"), R0, 0.0)
    known.receive_heartbeat(rig.heartbeat("r0"))
    known.forget(R0)
