"""Versions and channels over HTTP: idempotent, immutable and atomic."""

from typing import Any

import pytest

from tests.registry.backends import url
from tests.registry.catalogue_rig import Rig, digest
from tests.registry.rig import error_of

__all__ = ["url"]


async def test_putting_a_version_is_idempotent(catalogue: Rig) -> None:
    first = await catalogue.put("v1", "c")
    assert (first.status_code, first.json()["digest"], first.json()["model"]) == (201, digest("c"), "acme/bot")
    again = await catalogue.put("v1", "c")
    assert (again.status_code, again.json()) == (200, first.json())
    assert await catalogue.audited() == ["artifact.kept", "model.made", "version.put", "artifact.again"]


async def test_version_is_immutable(catalogue: Rig) -> None:
    await catalogue.put("v1", "c")
    refused = await catalogue.put("v1", "d")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "version_taken")
    assert digest("c") in error_of(refused)["message"]
    other_base = await catalogue.put("v2", "d", base_model="large")
    assert (other_base.status_code, error_of(other_base)["code"]) == (409, "base_differs")


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"adapter_type": "dora"}, 400, "unsupported_adapter_type"),
        ({"base_model": "none"}, 400, "base_not_found"),
        ({"rollout": "none"}, 400, "policy_not_found"),
        ({"digest": digest("f")}, 404, "artifact_not_found"),
        ({"digest": "sha256:F"}, 400, "invalid_body"),
        ({"artifact_uri": "s3://x/y"}, 400, "artifact_ambiguous"),
        ({"digest": None}, 400, "artifact_ambiguous"),
        ({"digest": None, "artifact_uri": "s3://shoal-models/acme/x"}, 503, "no_store"),
        ({"surprise": 1}, 400, "invalid_body"),
        ({"base_model": 3}, 400, "invalid_body"),
        ({"promote_to": "No Such Name"}, 400, "invalid_body"),
        ({"promote_to": "incoming"}, 400, "reserved_channel"),
    ],
)
async def test_invalid_versions_are_refused_with_a_message_and_change_nothing(
    catalogue: Rig, changes: dict[str, Any], status: int, code: str
) -> None:
    refused = await catalogue.put("v1", "c", **changes)
    assert (refused.status_code, error_of(refused)["code"]) == (status, code)
    assert len(error_of(refused)["message"]) > 20
    assert await catalogue.audited() == ["artifact.kept"]  # from the test's own setup


@pytest.mark.parametrize("channel", ["incoming", "incoming-2"])
async def test_reserved_channel_names_are_refused(catalogue: Rig, channel: str) -> None:
    await catalogue.put("v1", "c")
    refused = await catalogue.point("v1", channel)
    assert (refused.status_code, error_of(refused)["code"]) == (400, "reserved_channel")
    assert (await catalogue.point("v1", f"{channel}-eu")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/acme/Bot/versions/v1", "/v1/models/acme/bot/versions/v%001"])
async def test_invalid_names_are_refused(catalogue: Rig, path: str) -> None:
    refused = await catalogue.call("PUT", path, json={"base_model": "base", "digest": digest("c")})
    assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_parameter")


async def test_model_declared_in_git_is_refused_with_its_file(catalogue: Rig) -> None:
    for refused in (
        await catalogue.put("v9", "c", "acme/declared"),
        await catalogue.point("v1", model="acme/declared"),
        await catalogue.call("DELETE", "/v1/models/acme/declared"),
    ):
        assert (refused.status_code, error_of(refused)["code"]) == (409, "declared_in_git")
        assert "registry/acme.yaml" in error_of(refused)["message"]
        assert error_of(refused)["param"] == "registry/acme.yaml"


async def test_first_version_of_a_channel_is_served_at_once(catalogue: Rig) -> None:
    await catalogue.put("v1", "c")
    moved = await catalogue.point("v1")
    assert (moved.status_code, moved.json()["moved"], moved.json()["rollout"]) == (200, True, None)
    tag = moved.headers["etag"]
    again = await catalogue.point("v1")
    assert (again.status_code, again.json()["moved"], again.headers["etag"]) == (200, False, tag)
    shown = await catalogue.get("/v1/models/acme/bot")
    lock_version = int(tag.strip('"'))
    assert shown["channels"] == {"stable": {"version": "v1", "digest": digest("c"), "lock_version": lock_version}}


async def test_later_version_starts_a_rollout_and_the_channel_moves_at_its_end(catalogue: Rig) -> None:
    rollout = await catalogue.rolling()
    shown = await catalogue.get("/v1/models/acme/bot")
    assert shown["channels"]["stable"]["version"] == "v1"
    again = await catalogue.point("v2")
    assert (again.status_code, again.json()["rollout"]["id"]) == (200, rollout)
    await catalogue.put("v3", "e")
    elsewhere = await catalogue.point("v3")
    assert (elsewhere.status_code, elsewhere.json()["error"]["code"]) == (409, "rollout_active")
    assert elsewhere.json()["rollout"] == rollout
    for number, event in enumerate(("loaded", "stage_passed")):
        assert (await catalogue.happened(rollout, event, number)).status_code == 200
    shown = await catalogue.get("/v1/models/acme/bot")
    assert shown["channels"]["stable"]["version"] == "v2"


async def test_one_stage_policy_moves_the_channel_at_once(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", promote_to="stable", rollout="at-once")
    await catalogue.put("v2", "d")
    moved = await catalogue.point("v2")
    assert (moved.status_code, moved.json()["moved"]) == (200, True)
    assert (await catalogue.get("/v1/rollouts"))["data"] == []


async def test_equal_artifact_under_another_name_needs_no_rollout(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", promote_to="stable")
    await catalogue.put("v1-again", "c")
    assert (await catalogue.point("v1-again")).json()["moved"] is True


async def test_put_with_promote_is_one_transaction(catalogue: Rig) -> None:
    await catalogue.rolling()
    refused = await catalogue.put("v3", "e", promote_to="stable")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "rollout_active")
    names = [version["name"] for version in (await catalogue.get("/v1/models/acme/bot/versions"))["data"]]
    assert names == ["v1", "v2"]


async def test_channel_with_a_stale_etag_is_not_moved(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", rollout="at-once")
    await catalogue.put("v2", "d")
    unseen = await catalogue.point("v1", headers={"if-match": '"1"'})
    assert (unseen.status_code, error_of(unseen)["code"]) == (412, "channel_changed")
    first = (await catalogue.point("v1", headers={"if-match": '"0"'})).headers["etag"]
    assert (await catalogue.point("v2", headers={"if-match": first})).headers["etag"] != first
    late = await catalogue.point("v1", headers={"if-match": first})
    assert (late.status_code, error_of(late)["code"]) == (412, "channel_changed")
    wrong = await catalogue.point("v1", headers={"if-match": "yes"})
    assert (wrong.status_code, error_of(wrong)["code"]) == (400, "invalid_if_match")


async def test_pages_of_models_with_many_versions_are_shorter_and_complete(
    catalogue: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 models may have 500,000 versions, which a tenant may make of one artifact; no answer holds all of them."""
    monkeypatch.setattr("functions.registry.sql.catalogue.PAGE_VERSIONS", 3)
    for model, versions in (("acme/a", 2), ("acme/d", 1), ("acme/e", 5), ("acme/z", 1), ("globex/b", 4)):
        for number in range(versions):
            assert (await catalogue.put(f"v{number}", "c", model)).status_code == 201
    for limit in (1, 2, 1000):
        pages: list[list[str]] = []
        after: str | None = ""
        while after is not None:
            page = await catalogue.get("/v1/models", limit=limit, after=after)
            pages.append([row["id"] for row in page["data"]])
            after = page["next_after"]
        assert [id_ for ids in pages for id_ in ids] == [
            *("acme/a", "acme/d", "acme/declared", "acme/e", "acme/z", "base", "globex/b")
        ]
        assert all(0 < len(ids) <= limit for ids in pages)
    assert pages[0] == ["acme/a", "acme/d"]
    assert pages[1] == ["acme/declared", "acme/e"]


async def test_recreated_channel_has_another_etag(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", rollout="at-once")
    await catalogue.put("v2", "d")
    path = "/v1/models/acme/bot/channels/stable"
    seen = [(await catalogue.point("v1")).headers["etag"]]
    for _ in range(2):
        assert (await catalogue.call("DELETE", path)).status_code == 204
        seen.append((await catalogue.point("v2")).headers["etag"])
    for tag in seen[:-1]:
        late = await catalogue.point("v1", headers={"if-match": tag})
        assert (late.status_code, error_of(late)["code"]) == (412, "channel_changed")
    assert (await catalogue.point("v1", headers={"if-match": seen[-1]})).status_code == 200


async def test_only_unreferenced_versions_are_deleted_and_names_stay_taken(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", promote_to="stable", rollout="at-once")
    await catalogue.put("v2", "d")
    path = "/v1/models/acme/bot/versions/"
    named = await catalogue.call("DELETE", path + "v1")
    assert (named.status_code, error_of(named)["code"]) == (409, "version_in_use")
    assert (await catalogue.call("DELETE", path + "v2")).status_code == 204
    assert (await catalogue.call("DELETE", path + "v2")).status_code == 404
    taken = await catalogue.put("v2", "e")
    assert (taken.status_code, error_of(taken)["code"]) == (409, "version_taken")
    assert (await catalogue.put("v2", "d")).status_code == 201


async def test_deletion_is_refused_during_a_rollout(catalogue: Rig) -> None:
    await catalogue.rolling()
    for path in ("", "/versions/v2", "/channels/stable"):
        refused = await catalogue.call("DELETE", "/v1/models/acme/bot" + path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "rollout_active")


async def test_model_is_deleted_with_its_channels_and_can_be_recreated(catalogue: Rig) -> None:
    await catalogue.put("v1", "c", promote_to="stable")
    assert (await catalogue.call("DELETE", "/v1/models/acme/bot")).status_code == 204
    assert (await catalogue.call("GET", "/v1/models/acme/bot")).status_code == 404
    assert (await catalogue.put("v1", "c")).status_code == 201
    shown = await catalogue.get("/v1/models/acme/bot")
    assert (shown["channels"], [version["name"] for version in shown["versions"]]) == ({}, ["v1"])


async def test_channels_per_model_are_bounded(catalogue: Rig) -> None:
    await catalogue.put("v1", "c")
    for channel in ("a", "b", "c"):
        assert (await catalogue.point("v1", channel)).status_code == 200
    full = await catalogue.point("v1", "d")
    assert (full.status_code, error_of(full)["code"]) == (409, "too_many_channels")


async def test_model_pages_include_git_and_api_models(catalogue: Rig) -> None:
    for name in ("ant", "bee", "zoo"):
        await catalogue.put("v1", "c", f"acme/{name}")
    await catalogue.put("v1", "c", "globex/own")
    seen: list[str] = []
    after = ""
    while True:
        page = await catalogue.get("/v1/models", limit=2, after=after)
        assert len(page["data"]) <= 2
        seen += [model["id"] for model in page["data"]]
        if (after := page["next_after"]) is None:
            break
    assert seen == ["acme/ant", "acme/bee", "acme/declared", "acme/zoo", "base", "globex/own"]
    for name in ("v2", "v3"):
        await catalogue.put(name, "d", "acme/ant")
    page = await catalogue.get("/v1/models/acme/ant/versions", limit=2)
    assert ([row["name"] for row in page["data"]], page["next_after"]) == (["v1", "v2"], "v2")
    page = await catalogue.get("/v1/models/acme/ant/versions", limit=2, after="v2")
    assert ([row["name"] for row in page["data"]], page["next_after"]) == (["v3"], None)
    page = await catalogue.get("/v1/models/acme/declared/versions")
    assert [row["name"] for row in page["data"]] == ["v1"]
