"""Exact prefixes: tokens per replica from an admitted request and the replicas' updates; unknown results are None."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from functions.decisions.catalogue import Catalogue
from functions.decisions.prefix.block_bloom import build
from functions.decisions.routing.request import CachedPrompt
from functions.fleet.bus import BusUnavailable
from functions.fleet.prefix_updates import Delta, PrefixBloom, PrefixRequest, decode_request, encode, pack
from functions.gateway import feeds
from functions.gateway.intake.intake import Intake, RawRequest
from functions.gateway.intake.routes import CHAT, TOKENIZE, Route
from functions.gateway.prefix.exact_prefixes import ExactPrefixes
from functions.gateway.prefix.metrics import ExactPrefixStats
from functions.gateway.prefix.prompt_chains import Learnt
from functions.gateway.prefix.prompt_learner import PromptJob
from functions.gateway.prefix.tokenizer_source import TokenizerSource
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Splits
from tests.gateway import rig
from tests.gateway.prompt_rig import model_dir
from tests.gateway.rig import ACME_KEY, GLOBEX_KEY, NOW_UNIX_S, PEPPER, POOL

INTAKE = Intake(PEPPER, rig.limits(), Splits(time.monotonic))
CONTENT = "The quick brown fox jumps over the lazy dog. " * 60
BLOCK = 16


def admit(content: str = CONTENT, *, key: str = ACME_KEY, source: str = "events", route: Route = CHAT) -> Admitted:
    body: dict[str, Any] = {"model": "acme/bot" if key == ACME_KEY else "globex/bot"}
    body["messages"] = [{"role": "user", "content": content}]
    raw = RawRequest("r", rig.headers(key), json.dumps(body).encode())
    catalogue = catalogue_by(source)
    return INTAKE.admit(catalogue, route, raw, INTAKE.recognise(catalogue, raw, NOW_UNIX_S))


def catalogue_by(source: str) -> Catalogue:
    return rig.catalogue(routing=(rig.routing(prefix_source=source),))


@pytest.fixture
def exact(tmp_path: Path) -> ExactPrefixes:
    """Make an ExactPrefixes whose thread is not started; `taught` learns at once instead."""
    return ExactPrefixes(TokenizerSource(model_dir(tmp_path), None, lambda: 0.0, lambda: 0.5), lambda: 0.0)


def taught(exact: ExactPrefixes, admitted: Admitted) -> Learnt:
    output, features = admitted.route.output, admitted.features
    assert output is not None
    model, body = admitted.model, admitted.upstream_body
    job = PromptJob(
        admitted.caller.tenant,
        model.pool,
        model.engine_name,
        True,
        output,
        body,
        features.text_blocks,
        features.text_block_bytes,
        BLOCK,
        exact.tokenizers.directory_of(model.pool) or Path(),
    )
    learnt = exact.learner.learn(job)
    assert learnt is not None
    exact.store_learnt(job, learnt)
    return learnt


def receive_blocks(exact: ExactPrefixes, replica_id: str, names: "list[int]", in_host: "list[int]" = []) -> None:  # noqa: B006
    exact.receive(encode(Delta(replica_id, POOL, 7, 0, BLOCK)))
    exact.receive(encode(Delta(replica_id, POOL, 7, 1, BLOCK, pack(names), host_added=pack(in_host))))


def tokens(found: CachedPrompt | None) -> dict[str, int]:
    assert found is not None
    return dict(found.tokens)  # type: ignore[arg-type]


def test_blocks_in_host_memory_are_reported_separately(exact: ExactPrefixes) -> None:
    names = list(taught(exact, admit()).names)
    receive_blocks(exact, "r0", names[:5], names[5:9])
    receive_blocks(exact, "r1", names[:2])
    found = exact.matched(admit())
    assert found is not None
    assert (found.tokens, found.in_host) == ({"r0": 9 * BLOCK, "r1": 2 * BLOCK}, {"r0": 4 * BLOCK})


def test_match_returns_cached_tokens_per_replica(exact: ExactPrefixes) -> None:
    names = list(taught(exact, admit()).names)
    receive_blocks(exact, "r0", names)
    receive_blocks(exact, "r1", names[:5])
    receive_blocks(exact, "r2", [1, 2, 3])
    assert tokens(exact.matched(admit())) == {"r0": len(names) * BLOCK, "r1": 5 * BLOCK}
    longer = exact.matched(admit(CONTENT + "And what came then? " * 50))
    assert tokens(longer)["r0"] > len(names) * BLOCK * 0.9, "the next turn finds the former one"


def test_policy_selects_bloom_filters(exact: ExactPrefixes) -> None:
    names = list(taught(exact, admit()).names)
    exact.receive(encode(PrefixBloom("r0", POOL, BLOCK, 5, build(names[:5]))))
    assert tokens(exact.matched(admit(source="bloom"))) == {"r0": 5 * BLOCK}
    assert exact.matched(admit(source="events")) is None, "nobody has told events"


def test_equal_prompts_of_two_tenants_are_different(exact: ExactPrefixes) -> None:
    receive_blocks(exact, "r0", list(taught(exact, admit()).names))
    taught(exact, admit(key=GLOBEX_KEY))
    assert tokens(exact.matched(admit(key=GLOBEX_KEY))) == {}


def test_unknown_prompt_matches_none(exact: ExactPrefixes) -> None:
    assert exact.matched(admit()) is None, "no replica has told anything"
    receive_blocks(exact, "r0", [1])
    assert exact.matched(admit()) is None, "the prompt is new"
    assert exact.matched(admit("short")) is None, "less than a block of text"
    assert exact.matched(admit(route=TOKENIZE)) is None
    assert len(exact.learner._queue) == 1, "the new one is to be learnt, and no other"


def test_malformed_update_is_counted(exact: ExactPrefixes) -> None:
    exact.receive(b"rubbish")
    exact.receive(encode(PrefixBloom("r0", POOL, BLOCK, 1, b"12345678")))
    assert exact.refused_total == 2


def test_requests_for_prefixes_name_pool_source_and_replicas(exact: ExactPrefixes) -> None:
    assert exact.due_requests(catalogue_by("sent")) == []
    assert exact.due_requests(catalogue_by("events")) == [PrefixRequest(POOL, "events", everyone=True)]
    exact.receive(encode(Delta("r0", POOL, 7, 9, BLOCK)))
    assert exact.due_requests(catalogue_by("events")) == [PrefixRequest(POOL, "events", ("r0",))]
    assert exact.due_requests(catalogue_by("bloom")) == [PrefixRequest(POOL, "bloom", ("r0",))]


def test_figures(exact: ExactPrefixes) -> None:
    receive_blocks(exact, "r0", list(taught(exact, admit()).names)[:7])
    exact.matched(admit())
    exact.matched(admit("short"))
    registry = CollectorRegistry()
    registry.register(ExactPrefixStats(exact))
    page = generate_latest(registry).decode()
    for line in (
        'shoal_prefix_answers_total{answer="known"} 1.0',
        'shoal_prefix_answers_total{answer="unknown"} 1.0',
        f'shoal_prefix_replicas_known{{pool="{POOL}",source="events"}} 1.0',
        f'shoal_prefix_blocks_known{{pool="{POOL}",source="events"}} 7.0',
        "shoal_prefix_lessons_total 1.0",
    ):
        assert line in page


class FakeNews:
    """A bus that delivers the messages given and then fails."""

    def __init__(self, *news: bytes) -> None:
        self.news, self.asked = news, asyncio.Queue[bytes]()

    async def publish_prefixes(self, message: bytes) -> None:
        raise AssertionError("a gateway tells nothing")

    async def prefixes(self) -> AsyncIterator[bytes]:
        for message in self.news:
            yield message
        raise BusUnavailable("gone")

    async def publish_prefix_request(self, message: bytes) -> None:
        await self.asked.put(message)

    async def prefix_requests(self) -> AsyncIterator[bytes]:
        raise AssertionError("a gateway hears no questions")
        yield b""

    async def close(self) -> None:
        return


async def test_updates_lost_with_the_bus_are_requested(exact: ExactPrefixes) -> None:
    exact.due_requests(catalogue_by("events"))
    for sequence in (0, 3):
        with pytest.raises(BusUnavailable):
            await feeds.follow_prefixes(exact, FakeNews(encode(Delta("r0", POOL, 7, sequence, BLOCK))))
    assert exact.due_requests(catalogue_by("events")) == [PrefixRequest(POOL, "events", ("r0",))]


async def test_prefix_requests_start_with_the_first_snapshot(exact: ExactPrefixes) -> None:
    gateway, bus = rig.Rig().gateway, FakeNews()
    gateway.swap(catalogue_by("events"))
    task = asyncio.create_task(feeds.request_prefixes(gateway.services, exact, bus))
    ask = decode_request(await asyncio.wait_for(bus.asked.get(), 60))
    task.cancel()
    assert ask == PrefixRequest(POOL, "events", everyone=True)


async def test_learner_thread_delivers_results_on_the_loop(exact: ExactPrefixes) -> None:
    exact.start(asyncio.get_running_loop().call_soon_threadsafe)
    receive_blocks(exact, "r0", [1])
    admitted = admit()
    assert exact.matched(admitted) is None
    async with asyncio.timeout(60):
        while exact.learnt_total == 0:
            await asyncio.sleep(0.01)
    assert tokens(exact.matched(admitted)) == {}, "known, and nobody has it"
    exact.close()


def test_match_of_a_known_prompt_needs_no_tokenizer(exact: ExactPrefixes) -> None:
    """No tokenizer and no template runs for a known prompt: it is matched even if both are removed."""
    names = list(taught(exact, admit()).names)
    receive_blocks(exact, "r0", names)
    exact.learner = None  # type: ignore[assignment]
    admitted = admit()
    known = msgspec.structs.replace(admitted, upstream_body=b"")
    assert tokens(exact.matched(known)) == {"r0": len(names) * BLOCK}
