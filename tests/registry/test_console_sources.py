"""Sources of the console: samples and Prometheus, alerts, tenant usage, drills, traces and the controller's report."""

import json
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from functions.api.snapshot import QuotaLimitsPart
from functions.fleet.branch_report import PROBLEMS_MAX
from functions.fleet.pool_board import PoolSum
from functions.registry.app import make_app
from functions.registry.console.prometheus import Prometheus, PrometheusAddress, PrometheusAway, shown_alerts
from functions.registry.console.samples import FIGURES, POOLS_MAX, SAMPLES_MAX, Samples, rows_of
from functions.registry.console.series import POINTS, POOLS_SHOWN, QUERIES, PoolSeries
from functions.registry.console.sources import ConsoleSources, drill_reports, no_sources
from functions.registry.console.tenants import KEPT, MOST_BYTES, ROWS_MAX, RecentUse, UsageReading, shares
from functions.registry.console.traces import Traces
from functions.registry.fleet_watch import FleetWatch
from functions.telemetry.store.client import StoreAddress, TraceStore
from tests.fleet.builders import beat
from tests.ports import free_port
from tests.registry.catalogue_rig import Rig
from tests.registry.rig import NOW_UNIX_S, TOKEN, ScriptedBus

SUM = PoolSum(1, 1.0, 1.0, 0.0, 0.0, 0.5, 10, 0.1, 0.4, 0.03)
USED = dict.fromkeys(
    (*("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "kv_token_seconds"),
     *("accelerator_seconds", "cost")), 0.0,
)  # fmt: skip


# ---- series


def test_sample_has_reported_values_and_gaps_for_missing_ones() -> None:
    rows = rows_of({"a": SUM}, [beat(pool="b", kv_usage_ratio=0.2), beat(pool="b", kv_usage_ratio=0.7)])
    assert rows["a"]["ttft_p99_s"] == 0.4
    assert rows["a"]["kv_usage_ratio"] is None, "nought would look like an empty cache"
    assert rows["b"]["kv_usage_ratio"] == 0.7, "a mean would hide the replica that is full"


def test_step_shows_its_peak_and_a_minute_without_reports_is_a_gap() -> None:
    samples = Samples()
    for at_s, queue_s in ((0.0, 1.0), (10.0, 9.0), (20.0, 2.0), (130.0, 3.0)):
        samples.add_rows({"a": {"queue_s": queue_s}}, at_s)
    assert samples.series(0.0, 60.0, 3)["queue_s"]["a"] == [9.0, None, 3.0]


def test_samples_are_bounded_in_pools_and_in_time() -> None:
    samples = Samples()
    samples.add_rows({f"p{number}": {"queue_s": 1.0} for number in range(POOLS_MAX + 50)}, 0.0)
    assert len(samples.series(0.0, 60.0, 1)["queue_s"]) == POOLS_MAX
    for number in range(SAMPLES_MAX + 10):
        samples.add_rows({"p0": {"queue_s": float(number)}}, 10.0 * number)
    assert samples.series(0.0, 10.0, 10)["queue_s"] == {}, "the first ten are forgotten, and so are silent pools"


@contextmanager
def listening(answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Run a server that answers each path; return its address and the queries it receives."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            asked.extend(parse_qs(url.query).get("query", []))
            body = answers[url.path] if isinstance(answers[url.path], bytes) else json.dumps(answers[url.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def matrix(*pools: str, at_s: float, text: str = "0.25") -> dict[str, Any]:
    found = [{"metric": {"pool": pool}, "values": [[at_s, text], [at_s + 60.0, "NaN"]]} for pool in pools]
    return {"status": "success", "data": {"resultType": "matrix", "result": found}}


async def test_series_come_from_fixed_prometheus_queries_sent_once() -> None:
    now_s = 7200.0
    pools = [f"p{number:03d}" for number in range(POOLS_SHOWN + 5)]
    with listening({"/api/v1/query_range": matrix(*pools, at_s=now_s - 3540.0)}) as (url, asked):
        prometheus = Prometheus(PrometheusAddress(url))
        series = PoolSeries(Samples(), prometheus, lambda: 0.0, lambda: now_s)
        answer = await series.answer_for("1h")
        assert await series.answer_for("1h") is answer
        await prometheus.close()
    assert sorted(asked) == sorted(QUERIES.values()), "one question for each figure, however many look"
    assert (answer["source"], answer["trouble"], answer["pools"]) == ("prometheus", "", POOLS_SHOWN + 5)
    assert list(answer["series"]) == list(FIGURES)
    assert len(answer["series"]["queue_s"]) == POOLS_SHOWN
    assert answer["series"]["queue_s"]["p000"] == [0.25] + [None] * (POINTS - 1), "NaN is a hole"


@pytest.mark.parametrize("answer", [b"<html>", {"status": "error", "error": "out of order"}, {"status": "success"}])
async def test_invalid_prometheus_answer_falls_back_to_samples(answer: Any) -> None:
    samples = Samples()
    samples.add_rows({"a": {"queue_s": 1.5}}, 7199.0)
    with listening({"/api/v1/query_range": answer, "/api/v1/alerts": answer}) as (url, _):
        prometheus = Prometheus(PrometheusAddress(url))
        told = await PoolSeries(samples, prometheus, lambda: 0.0, lambda: 7200.0).answer_for("15m")
        with pytest.raises(PrometheusAway):
            await prometheus.alerts()
        await prometheus.close()
    assert told["source"] == "registry"
    assert "Prometheus answers" in told["trouble"]
    assert [value for value in told["series"]["queue_s"]["a"] if value is not None] == [1.5]


# ---- alerts


def test_only_shoal_alerts_are_listed_with_paging_ones_first() -> None:
    def one(name: str, state: str, severity: str, mode: str = "overload") -> dict[str, Any]:
        labels = {"alertname": name, "severity": severity, "failure_mode": mode, "pool": "<b>"}
        return {"state": state, "labels": labels, "activeAt": "1970-01-01T00:01:00.123456789Z", "annotations": {}}

    others = {"state": "firing", "labels": {"alertname": "KubeletDown", "severity": "page"}}
    told = shown_alerts(
        [one("soon", "pending", "page"), others, one("later", "firing", "ticket"), one("now", "firing", "page")]
    )
    assert [each["name"] for each in told["data"]] == ["now", "later", "soon"]
    assert (told["firing"], told["total"]) == (2, 3)
    assert told["data"][0]["labels"] == {"pool": "<b>"}
    assert told["data"][0]["since_unix_s"] == pytest.approx(60.12, abs=0.01)


# ---- tenants


def test_worked_example_from_the_prologue() -> None:
    used = USED | {"prompt_tokens": 30_000.0, "cached_tokens": 10_000.0}
    assert shares(QuotaLimitsPart(input_tokens_per_minute=10_000), 0.0, used, 300.0) == {
        "input_tokens_per_minute": pytest.approx(0.4)
    }
    assert shares(QuotaLimitsPart(input_tokens_per_minute=10_000), 1.0, used, 300.0)["input_tokens_per_minute"] == 0.6
    assert shares(QuotaLimitsPart(), 0.0, used, 300.0) == {}, "what is not limited has no share"


def test_recent_use_memory_is_within_its_bound() -> None:
    rows = 2000
    tracemalloc.start()
    kept = UsageReading(0.0, {(f"tenant-{number}", 486_000 + number % 2): _used(number) for number in range(rows)})
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept.rows) == rows and held / rows <= MOST_BYTES / (KEPT + 1) / ROWS_MAX


def _used(number: int) -> dict[str, float]:
    return dict.fromkeys(USED, number + 0.5)


def test_recent_use_spans_the_turn_of_the_hour() -> None:
    recent = RecentUse()
    assert recent.used_since(UsageReading(3600.0, {}))[0] == 0.0, "nothing to compare with"
    recent.looks.append(UsageReading(3540.0, {("acme", 0): USED | {"requests": 100.0}}))
    newest = UsageReading(3660.0, {("acme", 0): USED | {"requests": 110.0}, ("acme", 3600): USED | {"requests": 7.0}})
    seconds, added = recent.used_since(newest)
    assert (seconds, added["acme"]["requests"]) == (120.0, 17.0)
    for number in range(100):
        recent.looks.append(UsageReading(float(number), {}))
    assert len(recent.looks) == KEPT


async def test_busiest_tenants_are_listed_and_the_rest_is_one_line(catalogue: Rig) -> None:
    told = await catalogue.get("/v1/tenants", limit=1)
    assert ([each["name"] for each in told["data"]], told["found"], told["total"]) == (["acme"], 2, 2)
    assert told["other"]["requests"] == 0
    assert [each["name"] for each in (await catalogue.get("/v1/tenants", search="glo"))["data"]] == ["globex"]
    assert told["data"][0]["keys"] == 3


# ---- drills


def test_drills_are_listed_newest_first_and_invalid_reports_say_why(tmp_path: Path) -> None:
    assert drill_reports(None)["data"] == []
    assert drill_reports(tmp_path / "nowhere")["configured"]
    (tmp_path / "good.json").write_text(json.dumps({"drill": "replica-crash", "deep": {"a": {"b": {"c": {"d": 1}}}}}))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "torn.json").write_text('{"drill": ')
    told = {each["file"]: each for each in drill_reports(tmp_path)["data"]}
    assert told["good.json"]["report"]["drill"] == "replica-crash"
    assert told["good.json"]["report"]["deep"] == {"a": {"b": "…"}}
    assert "not a JSON object" in told["list.json"]["trouble"]
    assert told["torn.json"]["trouble"]


def test_a_drills_recorded_series_stay_in_their_file(tmp_path: Path) -> None:
    """Fifty reports with series would be megabytes at each refresh of the page."""
    report = {"drill": "bus-away", "recorded": {"series": {"shoal_bus_up{}": "1x90"}}, "passed": True}
    (tmp_path / "one.json").write_text(json.dumps(report))
    assert drill_reports(tmp_path)["data"][0]["report"] == {"drill": "bus-away", "passed": True}


# ---- routes


@contextmanager
def sourced(rig: Rig, sources: ConsoleSources) -> Iterator[httpx.AsyncClient]:
    """The rig's registry with these sources."""
    app = make_app(
        rig.store, FleetWatch(ScriptedBus()), rig.services.authenticator.credentials, lambda: NOW_UNIX_S,
        services=rig.services, console=sources,
    )  # fmt: skip
    headers = {"authorization": f"Bearer {TOKEN}"}
    yield httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://registry", headers=headers, timeout=60)


async def test_unreachable_trace_store_is_503_with_a_message(catalogue: Rig) -> None:
    missing = await catalogue.call("GET", "/v1/traces")
    assert (missing.status_code, missing.json()["error"]["code"]) == (503, "no_trace_store")
    store = TraceStore(StoreAddress(f"http://127.0.0.1:{free_port()}"), answer_s=5.0)
    there = no_sources()
    sources = ConsoleSources(there.samples, there.series, None, Traces(store), None)
    with sourced(catalogue, sources) as client:
        async with client:
            for path in ("/v1/traces", "/v1/traces/req-1"):
                away = await client.get(path)
                assert (away.status_code, away.json()["error"]["code"]) == (503, "trace_store_away")
            assert (await client.get("/v1/tenants")).status_code == 200, "the rest goes on"
    await sources.close()


@pytest.mark.parametrize(
    "query", ["tenant=a'b", "model=../x", "ago_s=0", "limit=1000", "over_ms=-1", "replica=%0a", "pool=" + "x" * 300]
)
async def test_invalid_search_is_refused_before_the_store_is_queried(catalogue: Rig, query: str) -> None:
    assert (await catalogue.call("GET", f"/v1/traces?{query}")).status_code == 400


async def test_a_browser_names_a_window_and_never_a_query(catalogue: Rig) -> None:
    assert (await catalogue.get("/v1/fleet/series", window="15m"))["source"] == "registry"
    for window in ("2h", "up", ""):
        assert (await catalogue.call("GET", f"/v1/fleet/series?window={window}")).status_code == 400


async def test_controller_report_is_stored_with_its_age(catalogue: Rig) -> None:
    assert (await catalogue.get("/v1/branch"))["report"] is None
    word = {"source": "main", "desired": "main@abc", "problems": ["a.yaml:3: <b>"], "problem_count": 1}
    assert (await catalogue.call("PUT", "/v1/branch", json=word)).status_code == 204
    told = await catalogue.get("/v1/branch")
    assert (told["age_s"], told["report"]["problems"]) == (0.0, ["a.yaml:3: <b>"])
    for wrong in ({}, {"source": "x" * 2000}, {"source": "main", "problems": ["x"] * (PROBLEMS_MAX + 1)}):
        assert (await catalogue.call("PUT", "/v1/branch", json=wrong)).status_code == 400
    assert (await catalogue.get("/v1/branch"))["report"]["desired"] == "main@abc"
