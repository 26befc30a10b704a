"""Over a hundred kinds of broken requests at every entry point: the right status, OpenAI's shape, never a 500."""

import asyncio
import json
import logging
import ssl
import time

import pytest

from tests.gateway import rig
from tests.gateway.broken import ALL, BODIES, CALLERS, HEADERS, HTTP, Broken
from tests.gateway.client_rig import HttpAnswer, get, post
from tests.gateway.live import WAYS, LiveGateway, Way, client, engine, quiet

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("broken", ALL, ids=lambda broken: broken.name)
async def test_broken(live: LiveGateway, trust: ssl.SSLContext, way: Way, broken: Broken) -> None:
    async with engine(live) as played, client(live, way, trust) as caller:
        await caller.send(broken.data)
        answer = await caller.answer()
        assert (answer.status, answer.code) == (broken.status, broken.code), answer.body
        assert played.served == [], "nothing of it reached an engine"
        assert_says_little(answer)
    assert await quiet(live)


def assert_says_little(answer: HttpAnswer) -> None:
    text = answer.body.decode()
    assert len(text) < 1000
    for secret in (rig.ACME_KEY[-20:], "Traceback", "functions/", "globex-ci"):
        assert secret not in text
    assert not set(answer.headers) & {"server", "date"}


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_refusal_leaves_the_connection_usable(live: LiveGateway, trust: ssl.SSLContext, way: Way) -> None:
    """If the framing is sound and the body was read, the connection serves the next request."""
    async with engine(live), client(live, way, trust) as caller:
        for broken in [*BODIES[:10], *CALLERS]:
            await caller.send(broken.data)
            assert (await caller.answer()).status == broken.status
        await caller.send(post())
        assert (await caller.answer()).status == 200


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("broken", HTTP, ids=lambda broken: broken.name)
async def test_bytes_after_broken_http_are_not_a_request(
    hasty: LiveGateway, trust: ssl.SSLContext, way: Way, broken: Broken
) -> None:
    async with engine(hasty) as played, client(hasty, way, trust) as caller:
        await caller.send(broken.data + post())
        rest = await caller.rest()
        assert rest.count(b"HTTP/1.1 ") == 1 and b"connection: close" in rest
        assert played.served == []


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "sent", [b"a\tb", b"<script>", b"x" * 129, "\u00e9".encode(), b'"quoted"', b"a,b", b""], ids=repr
)
async def test_a_malformed_request_id_is_replaced_not_echoed(
    live: LiveGateway, trust: ssl.SSLContext, way: Way, sent: bytes
) -> None:
    async with engine(live), client(live, way, trust) as caller:
        await caller.send(post().replace(b"Host: shoal.test", b"Host: shoal.test\r\nX-Request-Id: " + sent))
        answer = await caller.answer()
        assert answer.status == 200
        assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_logs_hold_one_line_a_record_and_no_secret(
    live: LiveGateway, trust: ssl.SSLContext, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with engine(live):
        for broken in [*CALLERS, *HEADERS[:8]]:
            async with client(live, way, trust) as caller:
                await caller.send(broken.data)
                await caller.answer()
    for record in caplog.records:
        message = record.getMessage()
        assert rig.ACME_KEY not in message
        if record.name.startswith("functions"):
            assert "\n" not in message and "\r" not in message


async def test_number_of_series_is_bounded_for_any_requests(live: LiveGateway, trust: ssl.SSLContext) -> None:
    """Names that callers invent do not become label values."""
    before = series(live)
    async with client(live, WAYS[0], trust) as caller:
        for number in range(200):
            body = json.dumps({"model": f"acme/m{number}", "messages": [{"role": "user", "content": "x"}]}).encode()
            await caller.send(post(body, x_request_id=f"r{number}"))
            assert (await caller.answer()).status == 404
    async with client(live, WAYS[2], trust) as caller:
        for number in range(200):
            await caller.send(get(f"/p{number}"))
            assert (await caller.answer()).status == 404
    assert series(live) - before <= 1


def series(live: LiveGateway) -> int:
    return sum(len(family.samples) for family in live.gateway.services.metrics.registry.collect())


async def test_hostile_body_does_not_delay_other_requests(live: LiveGateway, trust: ssl.SSLContext) -> None:
    """The bodies are 4 MiB and slow to parse; meanwhile another caller requests /healthz.

    Measured is this process's CPU time during that request, so that other load on the machine does not count.
    """
    hostile = [broken for broken in BODIES if broken.name in ("a million objects", "300,000 keys", "100,000 deep")]
    worst_cpu_s = 0.0

    async def measure(done: asyncio.Event) -> None:
        nonlocal worst_cpu_s
        async with client(live, WAYS[2], trust) as probe:
            while not done.is_set():
                started_cpu_s = time.process_time()
                await probe.send(get("/healthz"))
                await probe.answer()
                worst_cpu_s = max(worst_cpu_s, time.process_time() - started_cpu_s)

    done = asyncio.Event()
    probing = asyncio.gather(measure(done))
    for broken in hostile * 3:
        async with client(live, WAYS[0], trust) as caller:
            await caller.send(broken.data)
            assert (await caller.answer()).status == 400
    done.set()
    await probing
    assert worst_cpu_s < 0.5, "0.6 s was what one such body cost; 0.03 s is what it should, on an idle machine"
