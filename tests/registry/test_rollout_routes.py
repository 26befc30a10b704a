"""Rollouts over HTTP: their state, their end, and interventions by people."""

from collections.abc import Iterator

import pytest

from functions.api.ids import RolloutId
from functions.decisions.quantile_sketch import QuantileSketch
from functions.decisions.rollout.evidence import EncodedGroup, GroupStats, encoded_group
from functions.fleet import rollout_heartbeat
from functions.fleet.rollout_heartbeat import RolloutHeartbeat, StageStats
from tests.registry.backends import url
from tests.registry.catalogue_rig import Rig, digest
from tests.registry.rig import TOKEN, error_of

__all__ = ["url"]


@pytest.fixture
def heartbeat() -> Iterator[bytes]:
    """The heartbeat of a gateway for rollout ro-…, whose id is filled in."""
    slow = QuantileSketch()
    for value_ms in (10.0, 20.0, 400.0):
        slow.add(value_ms)
    counts = encoded_group(GroupStats(3, 1, slow, QuantileSketch(), QuantileSketch()))
    stage = StageStats(RolloutId("ro-00000000"), 0, counts, EncodedGroup(requests=9))
    yield rollout_heartbeat.encode(RolloutHeartbeat("gw", 1, 1, 900.0, (stage,)))


async def test_rollout_shows_its_state_both_groups_and_events(catalogue: Rig, heartbeat: bytes) -> None:
    rollout = await catalogue.rolling()
    assert (await catalogue.happened(rollout, "loaded", 0)).status_code == 200
    assert catalogue.services.evidence.receive_message(heartbeat.replace(b"ro-00000000", rollout.encode()), 950.0)
    shown = await catalogue.get(f"/v1/rollouts/{rollout}")
    assert (shown["state"], shown["stage"], shown["percent"], shown["active"]) == ("running", 0, 10, True)
    assert (shown["from_version"], shown["to_digest"]) == ("v1", digest("d"))
    assert shown["groups"]["candidate"]["requests"] == 3
    assert shown["groups"]["candidate"]["ttft_ms"]["p50"] == pytest.approx(20.0, rel=0.02)
    assert shown["evidence"]["control"]["requests"] == 9
    assert [(event["event"]["is"], event["state"], event["actor"]) for event in shown["events"]] == [
        ("loaded", "running", "controller")
    ]
    answer = await catalogue.get(f"/internal/v1/rollouts/{rollout}/evidence")
    assert (answer["candidate"]["errors"], answer["heard_unix_s"]) == (1, 950.0)


async def test_rollouts_are_listed_newest_first_with_pages_and_filters(catalogue: Rig) -> None:
    ids = [await catalogue.rolling(f"acme/m{number}") for number in range(3)]
    await catalogue.call("POST", f"/v1/rollouts/{ids[0]}/rollback")
    page = await catalogue.get("/v1/rollouts", limit=2)
    assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[:0:-1], True)
    rest = await catalogue.get("/v1/rollouts", limit=2, after=page["next_after"])
    assert ([row["id"] for row in rest["data"]], rest["next_after"]) == (ids[:1], None)
    for filters, found in (
        ({"active": "true"}, 2),
        ({"state": "rolled_back"}, 1),
        ({"model": "acme/m1"}, 1),
        ({"model": "acme/none"}, 0),
        ({"channel": "stable"}, 3),
    ):
        assert len((await catalogue.get("/v1/rollouts", **filters))["data"]) == found, filters


async def test_rollout_can_be_paused_resumed_and_rolled_back(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    await catalogue.happened(rollout, "loaded", 0)
    path = f"/v1/rollouts/{rollout}/"
    paused = await catalogue.call("POST", path + "pause")
    assert (paused.status_code, paused.json()["state"], paused.headers["etag"]) == (200, "paused", '"2"')
    twice = await catalogue.call("POST", path + "pause")
    assert (twice.status_code, error_of(twice)["code"]) == (409, "illegal_transition")
    assert (await catalogue.call("POST", path + "resume")).json()["state"] == "running"
    back = await catalogue.call("POST", path + "rollback", json={"reason": "it is rude"})
    assert (back.json()["state"], back.json()["active"]) == ("rolled_back", False)
    assert (await catalogue.get("/v1/models/acme/bot"))["channels"]["stable"]["version"] == "v1"
    last = (await catalogue.get("/v1/audit", limit=1))["data"][0]
    assert (last["action"], last["actor"], last["detail"]["event"]["reason"]) == (
        "rollout.rolled_back",
        "operator",
        "it is rude",
    )


async def test_promoting_completes_at_once_and_moves_the_channel_in_the_same_transaction(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    await catalogue.happened(rollout, "loaded", 0)
    done = await catalogue.call("POST", f"/v1/rollouts/{rollout}/promote")
    assert done.json()["state"] == "completed"
    assert (await catalogue.get("/v1/models/acme/bot"))["channels"]["stable"]["version"] == "v2"
    entries = (await catalogue.get("/v1/audit", limit=2))["data"]
    assert [entry["action"] for entry in entries] == ["channel.moved", "rollout.promoted"]
    assert entries[0]["change"] == entries[1]["change"]


async def test_unloaded_version_is_not_promoted(catalogue: Rig) -> None:
    """Promotion is refused before the version is loaded: while it loads, while paused, and in another attempt."""
    rollout = await catalogue.rolling()
    path = f"/v1/rollouts/{rollout}/"

    async def refused() -> bool:
        answer = await catalogue.call("POST", path + "promote")
        return (answer.status_code, error_of(answer)["code"]) == (409, "illegal_transition")

    assert await refused()
    assert (await catalogue.call("POST", path + "pause")).status_code == 200
    assert await refused()
    assert (await catalogue.call("POST", path + "resume")).json()["state"] == "loading"
    assert (await catalogue.happened(rollout, "loaded", 2)).status_code == 200
    assert (await catalogue.call("POST", path + "rollback")).status_code == 200
    assert (await catalogue.call("POST", path + "resume")).json()["attempt"] == 2
    assert await refused()
    assert (await catalogue.get("/v1/models/acme/bot"))["channels"]["stable"]["version"] == "v1"


async def test_rolled_back_version_may_be_retried_while_the_channel_is_unchanged(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    await catalogue.call("POST", f"/v1/rollouts/{rollout}/rollback")
    again = await catalogue.call("POST", f"/v1/rollouts/{rollout}/resume")
    assert (again.json()["state"], again.json()["attempt"]) == ("loading", 2)
    await catalogue.call("POST", f"/v1/rollouts/{rollout}/rollback")
    other = (await catalogue.point("v2")).json()["rollout"]["id"]
    assert other != rollout
    second = await catalogue.call("POST", f"/v1/rollouts/{rollout}/resume")
    assert (second.status_code, second.json()["rollout"]) == (409, other)
    for number, event in enumerate(("loaded", "stage_passed")):
        assert (await catalogue.happened(other, event, number)).status_code == 200
    gone = await catalogue.call("POST", f"/v1/rollouts/{rollout}/resume")
    assert (gone.status_code, error_of(gone)["code"]) == (409, "channel_moved")


async def test_intervention_on_a_stale_row_is_refused(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    await catalogue.happened(rollout, "loaded", 0)
    path = f"/v1/rollouts/{rollout}/pause"
    late = await catalogue.call("POST", path, headers={"if-match": '"0"'})
    assert (late.status_code, error_of(late)["code"]) == (412, "rollout_changed")
    assert (await catalogue.call("POST", path, headers={"if-match": '"1"'})).status_code == 200


@pytest.mark.parametrize("verb", ["stop", "PAUSE", "%2e%2e"])
async def test_other_verbs_are_refused(catalogue: Rig, verb: str) -> None:
    assert (await catalogue.call("POST", f"/v1/rollouts/ro-00000000/{verb}")).status_code == 400


async def test_missing_rollout_is_404(catalogue: Rig) -> None:
    for method, path in (("GET", "/v1/rollouts/ro-00000000"), ("POST", "/v1/rollouts/ro-00000000/pause")):
        missing = await catalogue.call(method, path)
        assert (missing.status_code, error_of(missing)["code"]) == (404, "rollout_not_found")


async def test_stage_metric_of_active_rollouts_is_for_the_operator_only(catalogue: Rig) -> None:
    async def stage_lines(who: str) -> list[str]:
        page = (await catalogue.call("GET", "/metrics", who)).text
        return [line for line in page.splitlines() if line.startswith("shoal_rollout_stage")]

    rollout = await catalogue.rolling()
    assert await stage_lines(TOKEN) == ['shoal_rollout_stage{model="acme/bot"} 0.0']
    await catalogue.happened(rollout, "loaded", 0)
    assert await stage_lines(TOKEN) == ['shoal_rollout_stage{model="acme/bot"} 1.0']
    for stranger in ("globex-writer", "acme-writer", "nobody"):
        assert await stage_lines(stranger) == [], "a model's name is its tenant's, and the route is open"
    await catalogue.happened(rollout, "breached", 1, reason="slow")
    assert await stage_lines(TOKEN) == [], "only what is under way"
