"""The registry's other routes: models, fleet, health, metrics, and how errors look."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from functions.fleet import heartbeat as heartbeats
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.registry.store import SnapshotStore
from tests.fleet.builders import beat as heartbeat
from tests.fleet.builders import snapshot
from tests.registry.rig import NOW_UNIX_S, Rig, error_of, serving


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as made:
        yield made


async def test_models_are_listed_with_versions_and_channels(rig: Rig) -> None:
    empty = {"object": "list", "snapshot_epoch": 0, "data": [], "has_more": False, "next_after": None}
    assert (await rig.get("/v1/models")).json() == empty
    await rig.put(snapshot(epoch=2))
    listed = (await rig.get("/v1/models")).json()
    (model,) = listed["data"]
    digest = "sha256:" + "a" * 64
    assert (listed["snapshot_epoch"], model["id"], model["pool"], model["type"]) == (2, "acme/bot", "base", "lora")
    assert model["channels"] == {"stable": {"version": "v1", "digest": digest}}
    assert model["versions"][0]["digest"] == digest
    assert (await rig.get("/v1/models/acme/bot")).json() == model


@pytest.mark.parametrize("name", ["acme/none", "none", "%00/%ff", "a" * 4000])
async def test_missing_model_is_404_with_a_message(rig: Rig, name: str) -> None:
    refused = await rig.get("/v1/models/" + name)
    assert (refused.status_code, error_of(refused)["code"]) == (404, "model_not_found")


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_fleet_view_follows_the_bus(rig: Rig) -> None:
    rig.bus.stored = [heartbeats.encode(heartbeat(replica_id="b")), b"rubbish"]
    async with asyncio.TaskGroup() as group:
        following = group.create_task(_until_lost(rig))
        await until(lambda: rig.fleet.bus_connected)
        rig.now_s = 2.0
        rig.bus.heartbeats.put_nowait(heartbeats.encode(heartbeat(replica_id="a", phase="draining", running=3)))
        rig.bus.heartbeats.put_nowait(b"[" * 100_000)
        await until(lambda: rig.bus.heartbeats.empty() and len(rig.fleet.replicas()) == 2)
        shown = (await rig.get("/v1/fleet")).json()
        assert shown["bus_connected"] is True
        assert [(it["replica_id"], it["phase"], it["running"], it["age_s"]) for it in shown["replicas"]] == [
            ("a", "draining", 3, 0.0),
            ("b", "ready", 0, 2.0),
        ]
        rig.bus.lose()
        await following
    assert rig.fleet.refused_total == 2


async def _until_lost(rig: Rig) -> None:
    with pytest.raises(BusUnavailable):
        await rig.fleet.run()


async def test_last_fleet_view_stays_and_ages_without_the_bus(rig: Rig) -> None:
    rig.fleet.receive_message(heartbeats.encode(heartbeat()))
    rig.now_s = SILENCE_LIMIT_S
    shown = (await rig.get("/v1/fleet")).json()
    assert (shown["bus_connected"], [it["age_s"] for it in shown["replicas"]]) == (False, [SILENCE_LIMIT_S])
    rig.now_s += 60.0
    assert [it["age_s"] for it in (await rig.get("/v1/fleet")).json()["replicas"]] == [SILENCE_LIMIT_S + 60.0]


async def test_connected_bus_without_heartbeats_keeps_the_fleet(rig: Rig) -> None:
    """The controller treats a registry that misses most heartbeats like one that receives none."""
    for name in ("r0", "r1", "r2"):
        rig.fleet.receive_message(heartbeats.encode(heartbeat(replica_id=name)))
    rig.fleet.link.set(True)
    rig.now_s = SILENCE_LIMIT_S + 0.1
    shown = (await rig.get("/v1/fleet")).json()
    assert (shown["bus_connected"], len(shown["replicas"])) == (False, 3)
    rig.now_s += 1.0
    for name in ("r0", "r1"):
        rig.fleet.receive_message(heartbeats.encode(heartbeat(replica_id=name, sequence=2)))
    shown = (await rig.get("/v1/fleet")).json()
    assert (shown["bus_connected"], len(shown["replicas"])) == (True, 3), "r2's silence counts anew, too"
    for sequence in range(3, 20):
        rig.now_s += 1.0
        for name in ("r0", "r1"):
            rig.fleet.receive_message(heartbeats.encode(heartbeat(replica_id=name, sequence=sequence)))
    shown = (await rig.get("/v1/fleet")).json()
    assert [it["replica_id"] for it in shown["replicas"]] == ["r0", "r1"]


async def test_health_needs_no_token_and_no_snapshot(rig: Rig) -> None:
    async with httpx.AsyncClient(base_url=rig.url) as stranger:
        assert (await stranger.get("/healthz")).json() == {"status": "ok"}
        ready = (await stranger.get("/readyz")).json()
        assert ready == {"status": "ready", "snapshot_epoch": 0, "bus_connected": False}
        assert "/v1/snapshot" in (await stranger.get("/openapi.json")).json()["paths"]


async def test_metrics_have_epoch_age_waiters_replicas_and_requests(rig: Rig) -> None:
    await rig.put(snapshot(epoch=7))
    await rig.put(snapshot(epoch=7))
    await rig.get("/no/such/route")
    rig.fleet.receive_message(heartbeats.encode(heartbeat(phase="hung")))
    text = (await rig.get("/metrics")).text
    samples = dict(re.findall(r"^(shoal\S+?) ([0-9.]+)$", text, re.MULTILINE))
    assert samples["shoal_snapshot_epoch"] == "7.0"
    assert samples["shoal_snapshot_age_seconds"] == str(NOW_UNIX_S - 100.0)
    assert samples["shoal_snapshot_waiters"] == "0.0"
    assert samples['shoal_replica_state{replica="r0",state="hung"}'] == "1.0"
    assert samples['shoal_snapshot_publications_total{outcome="published"}'] == "1.0"
    assert samples['shoal_snapshot_publications_total{outcome="epoch_taken"}'] == "1.0"
    assert samples['shoal_registry_requests_total{code="409",method="PUT",route="/v1/snapshot"}'] == "1.0"
    assert samples['shoal_registry_requests_total{code="404",method="GET",route="(none)"}'] == "1.0"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("DELETE", "/v1/snapshot", 405),
        ("POST", "/healthz", 405),
        ("GET", "/v1/models/a/b/c", 404),
    ],
)
async def test_framework_errors_have_the_common_shape(rig: Rig, method: str, path: str, status: int) -> None:
    refused = await rig.client.request(method, path)
    assert refused.status_code == status
    assert "/openapi.json" in error_of(refused)["message"]


@pytest.mark.parametrize(("given", "echoed"), [("abc-1.2_3", True), ("a b", False), ("x" * 129, False), ("", False)])
async def test_request_ids_are_echoed_or_generated(rig: Rig, given: str, echoed: bool) -> None:
    response = await rig.client.get("/healthz", headers={"x-request-id": given})
    made = response.headers["x-request-id"]
    assert (made == given) is echoed
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", made)


async def test_unexpected_error_is_a_500_without_details(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: SnapshotStore) -> int:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(SnapshotStore, "epoch", property(broken))
    response = await rig.client.get("/v1/models", headers={"x-request-id": "find-me"})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert error_of(response)["code"] == "internal_error"
    assert response.headers["x-request-id"] == "find-me"
    assert "request find-me failed" in caplog.text
    assert "secret detail" in caplog.text
