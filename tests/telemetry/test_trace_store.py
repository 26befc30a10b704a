"""The trace store on one machine: chDB behind ClickHouse's HTTP interface, with kills and real SQL."""

import base64
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from functions.telemetry.store.client import StoreAddress, StoreAway, StoreReceiver, TraceStore, TraceStoreRefused
from functions.telemetry.store.questions import Search, find, search
from functions.telemetry.trace_row import COLUMNS, TraceRow, encode
from functions.telemetry.trace_shipping import PieceRefused, ReceiverAway
from loadtests.traces.rows import generated
from tests.ports import free_port
from tests.roles import RoleProcess, start
from tests.telemetry.test_traces import row as any_row

pytest.importorskip("chdb")
pytestmark = pytest.mark.servers
NOW_S = float(int(time.time()) // 3600 * 3600 - 1800)  # the middle of an hour
PASSWORD = "a password"


class Server:
    def __init__(self, folder: Path) -> None:
        self.port, self._folder = free_port(), folder
        (folder / "password").write_text(PASSWORD + "\n")
        self.store = TraceStore(StoreAddress(f"http://127.0.0.1:{self.port}", "shoal", PASSWORD))
        self.process = self.start()

    def start(self) -> RoleProcess:
        variables = {
            "SHOAL_TRACE_STORE_PORT": str(self.port),
            "SHOAL_TRACE_STORE_DIRECTORY": str(self._folder / "data"),
            "SHOAL_TRACE_STORE_PASSWORD_FILE": str(self._folder / "password"),
            "PATH": "/usr/bin:/bin",
        }
        with (self._folder / "log").open("ab") as log:
            self.process = start("functions.telemetry.store", env=variables, stderr=log, stdout=log)
        for _ in range(400):
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/ping").text == "Ok.\n":
                    return self.process
            except httpx.HTTPError:
                time.sleep(0.05)
            assert self.process.poll() is None, (self._folder / "log").read_text()
        raise AssertionError("the store never answered")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("store"))
    yield found
    found.store.close()
    found.process.terminate()
    assert found.process.wait(10) is not None


@pytest.fixture
def receiver(server: Server) -> Iterator[StoreReceiver]:
    """A receiver on an emptied store."""
    yield StoreReceiver(server.store, 30)
    server.store.execute("DROP DATABASE IF EXISTS shoal")


def row(request_id: str, at_s: float = NOW_S, **changes: object) -> TraceRow:
    return any_row(request_id, **{"ts": at_s, **changes})


def piece(*rows: TraceRow) -> bytes:
    return b"".join(encode(each) + b"\n" for each in rows)


def count(server: Server, what: str) -> int:
    return int(server.store.select(f"SELECT {what} AS n")[0]["n"])


def test_a_row_comes_back_as_it_was(server: Server, receiver: StoreReceiver) -> None:
    some = row("quoted'; DROP", error="it's \\ \t\n é", first_token_ms=None, ts=NOW_S + 0.123456, cached_tokens=None)
    receiver.receive(piece(some, row("other")), "p1")
    assert find(server.store, "quoted'; DROP") == some
    assert find(server.store, "quoted'; DROP", "another tenant") is None
    assert {
        each["name"] for each in server.store.select("SELECT name FROM system.columns WHERE table = 'requests'")
    } == {*COLUMNS}


def test_a_piece_that_comes_again_is_there_once_also_in_the_totals_and_after_a_kill(
    server: Server, receiver: StoreReceiver
) -> None:
    """The rows span three days and so three partitions; each partition must recognize the piece."""
    rows = [row(f"r{number}", NOW_S - 40_000 * number, prompt_tokens=7) for number in range(5)]
    receiver.receive(piece(*rows), "p1")
    receiver.receive(piece(*rows), "p1")
    server.kill()
    with pytest.raises(ReceiverAway):
        receiver.receive(piece(*rows), "p1")
    server.start()
    receiver.receive(piece(*rows), "p1")
    assert count(server, "(SELECT count() FROM shoal.requests)") == 5
    totals = server.store.select("SELECT sum(requests) AS n, sum(prompt_tokens) AS p FROM shoal.requests_hourly")
    assert totals == [{"n": 5, "p": 35}]


def test_rows_that_came_in_two_pieces_are_one_in_every_answer(server: Server, receiver: StoreReceiver) -> None:
    """Duplicates must not show before a merge either, for example after a spool was restored from a backup."""
    server.store.migrate(30)
    server.store.execute("SYSTEM STOP MERGES shoal.requests")
    receiver.receive(piece(row("a"), row("b", NOW_S + 1)), "p1")
    receiver.receive(piece(row("b", NOW_S + 1), row("c", NOW_S + 2)), "p2")
    assert count(server, "(SELECT count() FROM shoal.requests)") == 4
    assert count(server, "(SELECT count() FROM shoal.requests FINAL)") == 3
    found = search(server.store, Search(NOW_S - 10, limit=3))
    assert [each.request_id for each in found] == ["c", "b", "a"]


def test_the_same_id_of_two_tenants_or_twice_of_one_are_several_requests(
    server: Server, receiver: StoreReceiver
) -> None:
    """Callers choose request ids: one of them must not hide another's row."""
    receiver.receive(piece(row("id"), row("id", tenant_id="globex"), row("id", NOW_S + 5, status=500)), "p1")
    assert count(server, "(SELECT count() FROM shoal.requests FINAL)") == 3
    newest = find(server.store, "id", "acme")
    assert newest is not None and newest.status == 500


def test_a_search_finds_what_was_asked_for(server: Server, receiver: StoreReceiver) -> None:
    rows = [
        row("old", NOW_S - 7200),
        row("slow", total_ms=9000.0),
        row("failed", NOW_S + 1, status=502, error="upstream_failed", tenant_id="globex"),
        row("other", NOW_S + 2, model_id="acme/poet", version="v3", pool="large", replica_id="large-1", trace_id="ab"),
    ]
    receiver.receive(piece(*rows), "p1")

    def ids(**terms: object) -> list[str]:
        return [each.request_id for each in search(server.store, Search(**{"since_s": NOW_S - 60, **terms}))]  # type: ignore[arg-type]

    assert ids() == ["other", "failed", "slow"]
    assert ids(since_s=0.0)[-1] == "old" and ids(until_s=NOW_S + 1) == ["slow"]
    assert ids(tenant="globex") == ids(errors=True) == ["failed"]
    assert ids(model="acme/poet") == ids(model="acme/poet@v3") == ids(pool="large") == ids(trace_id="ab") == ["other"]
    assert ids(replica="large-1") == ["other"] and ids(model="acme/poet@v1") == []
    assert ids(slowest_first=True)[0] == "slow" and ids(over_ms=5000.0) == ["slow"] and ids(limit=1) == ["other"]


def test_a_table_of_an_older_release_gets_the_new_column_and_the_retention(
    server: Server, receiver: StoreReceiver
) -> None:
    receiver.receive(piece(row("before")), "p1")
    server.store.execute("ALTER TABLE shoal.requests DROP COLUMN finish_reason SETTINGS mutations_sync=1")
    StoreReceiver(server.store, 7).receive(piece(row("after")), "p2")
    found = find(server.store, "after")
    assert found is not None and found.finish_reason == "stop"
    definition = server.store.select("SELECT create_table_query AS d FROM system.tables WHERE name = 'requests'")[0][
        "d"
    ]
    assert "toIntervalDay(7)" in definition


def test_a_table_that_was_dropped_is_made_again(server: Server, receiver: StoreReceiver) -> None:
    receiver.receive(piece(row("a")), "p1")
    server.store.execute("DROP DATABASE shoal")
    with pytest.raises(ReceiverAway):
        receiver.receive(piece(row("b")), "p2")
    receiver.receive(piece(row("b")), "p2")
    assert find(server.store, "b") is not None


def test_bad_rows_are_told_from_a_bad_store(server: Server, receiver: StoreReceiver) -> None:
    with pytest.raises(PieceRefused):
        receiver.receive(b'{"ts": "yesterday"}\n', "p1")
    with pytest.raises(TraceStoreRefused) as caught:
        server.store.select("SELECT nothing")
    assert caught.value.code == 47


def test_trace_store_requires_the_password(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    assert httpx.post(url, content="SELECT 1").status_code == 401
    basic = base64.b64encode(f"shoal:{PASSWORD}".encode()).decode()
    assert httpx.post(url, content="SELECT 1", headers={"authorization": f"Basic {basic}"}).text == "1\n"
    assert httpx.get(f"{url}?query=SELECT+1", headers={"authorization": "Basic !"}).status_code == 401
    with (
        closing(TraceStore(StoreAddress(url, "shoal", "wrong"))) as stranger,
        pytest.raises(TraceStoreRefused) as caught,
    ):
        stranger.select("SELECT 1")
    assert caught.value.code == 516


def test_unreachable_trace_store_is_unavailable() -> None:
    with closing(TraceStore(StoreAddress(f"http://127.0.0.1:{free_port()}"))) as store, pytest.raises(StoreAway):
        store.select("SELECT 1")


def test_trace_store_stops_at_once_on_sigterm(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    began_s = time.monotonic()
    assert server.process.wait(10) in (0, -signal.SIGTERM) and time.monotonic() - began_s < 5.0
    server.start()


def test_a_search_over_many_rows_takes_memory_for_those_that_it_shows(server: Server, receiver: StoreReceiver) -> None:
    """Sorting all columns of all rows would exceed a statement's gigabyte for three days of 10 million rows a week."""
    server.store.migrate(30)
    for number in range(3):
        server.store.execute(generated(100_000, int(NOW_S) - 900, 600, number * 100_000))
    server.store.execute("SET max_memory_usage = 67108864")
    try:
        newest = search(server.store, Search(NOW_S - 3600))
        slowest = search(server.store, Search(NOW_S - 3600, slowest_first=True, limit=7))
    finally:
        server.store.execute("SET max_memory_usage = 1073741824")
    assert len(newest) == 50 and [each.ts for each in newest] == sorted((each.ts for each in newest), reverse=True)
    assert newest[0].ts == server.store.select("SELECT toFloat64(max(ts)) AS t FROM shoal.requests")[0]["t"]
    most = server.store.select("SELECT max(total_ms) AS t FROM shoal.requests")[0]["t"]
    assert len(slowest) == 7 and slowest[0].total_ms == most
