"""The metrics port: rendered off the loop, from state that only the loop may read."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Gauge

from functions.telemetry.exposition import MetricsServer

pytestmark = pytest.mark.servers


class Exposed:
    """A served registry with one gauge that counts its refreshes and records their thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.gauge = Gauge("shoal_refreshes", "so many", registry=self.registry)
        self.refreshed_by: list[int] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.wrong = ""
        probes = {"/readyz": lambda: self.wrong}
        self.server = MetricsServer(listener, self.registry, self.refresh, asyncio.get_running_loop(), probes)
        self.server.start()

    def refresh(self) -> None:
        self.refreshed_by.append(threading.get_ident())
        self.gauge.set(len(self.refreshed_by))

    async def get(self, path: str = "/metrics") -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=60.0) as client:
            return await client.get(path)


@pytest.fixture
async def exposed() -> AsyncIterator[Exposed]:
    found = Exposed()
    yield found
    await asyncio.to_thread(found.server.close)


async def test_each_scrape_is_fresh_and_refreshed_on_the_loop(exposed: Exposed) -> None:
    for number in (1.0, 2.0):
        answer = await exposed.get()
        assert answer.status_code == 200
        assert f"shoal_refreshes {number}" in answer.text
    assert set(exposed.refreshed_by) == {threading.get_ident()}


async def test_other_paths_say_where_the_metrics_are(exposed: Exposed) -> None:
    answer = await exposed.get("/")
    assert answer.status_code == 404
    assert "/metrics" in answer.text
    assert exposed.refreshed_by == []


async def test_a_probe_says_what_is_wrong(exposed: Exposed) -> None:
    answer = await exposed.get("/readyz")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    exposed.wrong = "the cluster is not known yet"
    answer = await exposed.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "the cluster is not known yet\n")
    assert exposed.refreshed_by == [], "the metrics were not asked for"


async def test_a_loop_that_does_not_answer_costs_the_scraper_a_503(
    exposed: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("functions.telemetry.exposition._REFRESH_TIMEOUT_S", 0.1)
    answers: list[int] = []
    url = exposed.url + "/metrics"
    scraper = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=60).status_code))
    scraper.start()
    scraper.join(60.0)  # blocks the loop on purpose: this test runs in the loop's thread
    assert answers == [503]


async def test_dripping_client_does_not_block_the_metrics_port(exposed: Exposed) -> None:
    """Sending a byte every four seconds must not hold the only thread: scrapes and probes would go unanswered."""
    port = int(exposed.url.rpartition(":")[2])
    drips = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
    for _, writer in drips:
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nx-a: ")
        await writer.drain()
    async with asyncio.timeout(4.0):
        assert (await exposed.get("/readyz")).status_code == 200
        assert (await exposed.get()).status_code == 200
    for _, writer in drips:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
