"""Routes for controllers: changes as whole writes, rollouts that never fork, and the fence."""

import asyncio
from typing import Any

import msgspec
import pytest

from functions.api.ids import Digest, ModelId
from functions.api.snapshot import StageEntry
from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout import lifecycle
from functions.decisions.rollout.lifecycle import RolloutSpec
from functions.registry.sql import changes
from functions.registry.sql.audit import Actor
from tests.registry.catalogue_rig import STAGES, Rig, digest, published
from tests.registry.rig import error_of

POLICY = published().rollouts[1]


def spec(to: str = "d", **fields: Any) -> RolloutSpec:
    made = RolloutSpec(
        model=ModelId("acme/declared"),
        channel="stable",
        pool="base",
        from_version="v1",
        from_digest=digest("a"),
        from_artifact_uri="s3://shoal-models/acme/declared/v1",
        to_version="v2",
        to_digest=Digest(digest(to)),
        to_artifact_uri="s3://shoal-models/acme/declared/v2",
        policy=POLICY,
        origin="git",
    )
    return msgspec.structs.replace(made, **fields)


async def create(catalogue: Rig, wanted: RolloutSpec, fence: int = 0, id_: str | None = None) -> Any:
    path = f"/internal/v1/rollouts/{id_ or lifecycle.id_of(wanted)}"
    return await catalogue.call(
        "PUT", path, content=rollout_codec.encode(wanted), headers={"x-shoal-fence": str(fence)}
    )


async def feed(catalogue: Rig, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = await catalogue.get("/internal/v1/changes", **params)
    return found


async def test_two_controllers_create_one_rollout(catalogue: Rig) -> None:
    first, second = await create(catalogue, spec()), await create(catalogue, spec())
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.content == second.content
    row = rollout_codec.decode_rollout(first.content)
    assert (row.state, row.policy.stages, row.created_unix_s) == ("loading", STAGES, 1000.0)


async def test_a_channel_has_one_rollout_at_a_time(catalogue: Rig) -> None:
    one = rollout_codec.decode_rollout((await create(catalogue, spec())).content)
    other = await create(catalogue, spec("e"))
    assert (other.status_code, other.json()["rollout"]) == (409, one.id)
    assert (await create(catalogue, spec("e", channel="canary"))).status_code == 201


async def test_wrong_rollout_id_is_refused(catalogue: Rig) -> None:
    refused = await create(catalogue, spec(), id_="ro-00000000")
    assert (refused.status_code, error_of(refused)["code"]) == (400, "wrong_rollout_id")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":1}', b"\xff", b"[" * 10_000])
async def test_invalid_rollout_bodies_are_refused(catalogue: Rig, body: bytes) -> None:
    for method, path in (
        ("PUT", "/internal/v1/rollouts/ro-00000000"),
        ("POST", "/internal/v1/rollouts/ro-00000000/events"),
    ):
        refused = await catalogue.call(method, path, content=body)
        assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_body")


async def test_event_applies_only_to_the_row_version_it_names(catalogue: Rig) -> None:
    id_ = rollout_codec.decode_rollout((await create(catalogue, spec())).content).id
    first = await catalogue.happened(id_, "loaded", 0)
    assert rollout_codec.decode_rollout(first.content).lock_version == 1
    second = await catalogue.happened(id_, "stage_passed", 0)
    assert (second.status_code, error_of(second)["code"]) == (409, "rollout_changed")
    illegal = await catalogue.happened(id_, "loaded", 1)
    assert (illegal.status_code, error_of(illegal)["code"]) == (409, "illegal_transition")
    assert len((await catalogue.get(f"/v1/rollouts/{id_}"))["events"]) == 1


async def test_unreadable_row_is_not_written(catalogue: Rig) -> None:
    """Every reader of the feed would fail on such a row for ever."""
    id_ = rollout_codec.decode_rollout((await create(catalogue, spec())).content).id
    before = await catalogue.audited()
    wordy = await catalogue.happened(id_, "rolled_back", 0, by="b" * 200, reason="r" * 2000)
    assert (wordy.status_code, error_of(wordy)["code"]) == (400, "rollout_unreadable")
    text = "x" * 97
    room = (rollout_codec.DOCUMENT_MAX_BYTES - len(rollout_codec.encode(spec("e", channel="canary")))) // 100
    stages = (StageEntry(10, 60.0, (text,) * (room - 1)), StageEntry(100))
    wide = spec("e", channel="canary", policy=msgspec.structs.replace(POLICY, stages=stages))
    assert (
        len(rollout_codec.encode(wide)) < rollout_codec.DOCUMENT_MAX_BYTES
    )  # its row has more fields and exceeds the limit
    too_wide = await create(catalogue, wide)
    assert (too_wide.status_code, error_of(too_wide)["code"]) == (400, "rollout_unreadable")
    assert await catalogue.audited() == before
    assert [row["id"] for row in (await feed(catalogue))["rollouts"]] == [id_]


async def test_former_leader_cannot_write_rollouts(catalogue: Rig) -> None:
    id_ = rollout_codec.decode_rollout((await create(catalogue, spec(), fence=4)).content).id
    assert (await catalogue.happened(id_, "loaded", 0, fence=5)).status_code == 200
    for fence in (4, 0):
        late = await catalogue.happened(id_, "stage_passed", 1, fence=fence)
        assert (late.status_code, error_of(late)["code"]) == (409, "fenced")
        assert error_of(await create(catalogue, spec("e"), fence=fence))["code"] == "fenced"
    assert (await catalogue.happened(id_, "stage_passed", 1, fence=5)).status_code == 200


async def test_rollout_of_a_channel_in_git_writes_no_model_row(catalogue: Rig) -> None:
    id_ = rollout_codec.decode_rollout((await create(catalogue, spec())).content).id
    for number, event in enumerate(("loaded", "stage_passed")):
        assert (await catalogue.happened(id_, event, number)).status_code == 200
    assert (await feed(catalogue))["models"] == []


async def test_feed_returns_each_change_once(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    key = (await catalogue.call("POST", "/v1/tenants/acme/keys", json={"id": "ci"})).json()
    found = await feed(catalogue)
    assert (found["more"], [row["id"] for row in found["models"]]) == (False, ["acme/bot"])
    (model,) = found["models"]
    assert (model["base"], model["rollout"], model["deleted"], model["channels"]) == (
        "base",
        "default",
        False,
        {"stable": "v1"},
    )
    assert model["versions"] == [
        {"name": "v1", "digest": digest("c"), "artifact_uri": ""},
        {"name": "v2", "digest": digest("d"), "artifact_uri": ""},
    ]
    assert [row["key_id"] for row in found["keys"]] == ["ci"]
    assert key["key"] not in str(found)
    (told,) = found["rollouts"]
    assert 0 < told.pop("seq") <= found["change"]
    assert rollout_codec.decode_rollout(msgspec.json.encode(told)).id == rollout
    assert (await feed(catalogue, after=found["change"])) == found | {"models": [], "keys": [], "rollouts": []}
    await catalogue.call("DELETE", "/v1/tenants/acme/keys/ci")
    later = await feed(catalogue, after=found["change"])
    assert ([row["revoked"] for row in later["keys"]], later["models"]) == ([True], [])


async def test_deleted_rows_are_reported_as_deleted(catalogue: Rig) -> None:
    await catalogue.put("v1", "c")
    seen = (await feed(catalogue))["change"]
    await catalogue.call("DELETE", "/v1/models/acme/bot")
    (model,) = (await feed(catalogue, after=seen))["models"]
    assert (model["id"], model["deleted"], model["versions"], model["channels"]) == ("acme/bot", True, [], {})


async def test_page_never_splits_a_write(catalogue: Rig) -> None:
    for number in range(4):
        await catalogue.rolling(f"acme/m{number}")
    for page_rows in (1, 2, 3, 5):
        after, models, rollouts = 0, [], []
        while True:
            page = catalogue.database.read(lambda c, after=after, rows=page_rows: changes.changes_after(c, after, rows))
            models += [row.id for row in page.models]
            rollouts += [row.rollout.model for row in page.rollouts]
            assert page.change > after or not page.more
            after = page.change
            if not page.more:
                break
        assert sorted(models) == sorted(rollouts) == [f"acme/m{number}" for number in range(4)], page_rows


async def test_write_wakes_a_follower(catalogue: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(feed(catalogue, after=0, wait_s=60))
        await asyncio.sleep(0)
        await catalogue.put("v1", "c")
    assert waiting.result()["change"] > 0


async def test_write_of_another_registry_wakes_a_follower(catalogue: Rig) -> None:
    listeners, catalogue.database._listeners = catalogue.database._listeners, []  # as if in another process
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(feed(catalogue, after=0, wait_s=60))
        catalogue.database.write(Actor("other"), lambda write: write.add_audit_entry("made", "thing"))
    assert waiting.result()["change"] == 1
    catalogue.database._listeners = listeners


async def test_follower_ahead_of_the_registry_is_answered_at_once(catalogue: Rig) -> None:
    """The database was restored from a backup."""
    await catalogue.put("v1", "c")
    now = (await feed(catalogue))["change"]
    assert (await feed(catalogue, after=now + 100, wait_s=60))["change"] == now


async def test_wait_without_changes_ends_empty(catalogue: Rig) -> None:
    found = await feed(catalogue, after=0, wait_s=0.05)
    assert (found["change"], found["models"], found["more"]) == (0, [], False)
