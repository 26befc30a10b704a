"""Models and keys of the API beside git's: git wins, and models without a tenant are left out."""

import msgspec
import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, RolloutId
from functions.api.snapshot import ModelEntry, QuotaLimitsPart, Snapshot
from functions.api.snapshot_document import full_lines
from functions.artifacts.errors import ArtifactMissing
from functions.controller.rollouts.book import Book, fold_page
from functions.controller.rollouts.client import ApiKeyRow, ApiModel, ApiVersion
from functions.controller.rollouts.merging import merge_api, with_api_of, without_revoked
from functions.controller.snapshot.compile import compile_snapshot
from functions.registry.sql import artifacts
from functions.registry.sql.artifacts import StoredArtifact
from functions.registry.sql.audit import Actor
from tests.controller.configs import base, load, lora, pool, tenant
from tests.controller.rollouts.rig import BOT, Rig, digest_of, fleet, policy
from tests.controller.rollouts.test_book import api_model, key, page
from tests.decisions.rollout.rollouts import digest, rollout
from tests.registry.rig import TOKEN


def compiled() -> Snapshot:
    loaded = load(pool(), tenant("acme", "git-key"), base(), lora(BOT, "v1"), policy("careful"))
    uris = {"s3://shoal-models/acme/bot/v1": digest("v1"), "pvc://shoal-models/base": digest("base")}
    return compile_snapshot(loaded.objects, uris, epoch=1, revision="r", compiled_unix_s=0.0).snapshot


def book(*models: ApiModel, keys: tuple[ApiKeyRow, ...] = ()) -> Book:
    return fold_page(Book(), page(5, models=models, keys=keys))


def test_models_and_keys_of_git_and_api_are_merged() -> None:
    whole, problems = merge_api(compiled(), book(api_model("acme/api"), keys=(key("ci"),)))
    assert problems == ()
    assert [model.id for model in whole.models] == ["acme/api", "acme/bot", "base"]
    assert [entry.key_id for entry in whole.keys] == ["ci", "git-key"]
    model = whole.models[0]
    assert (model.pool, model.type, model.declared_in, model.rollout) == ("base", "lora", "", "")
    assert model.versions[0].engine_name == "acme/api@sha256:" + "1" * 16
    assert snapshots.decode(snapshots.encode(whole)) == whole


def test_key_limits_reach_the_gateways() -> None:
    encoded = msgspec.json.encode({**msgspec.to_builtins(key("ci")), "limits": {"requests_per_minute": 60}})
    whole, _ = merge_api(compiled(), book(keys=(msgspec.json.decode(encoded, type=ApiKeyRow),)))
    assert [entry.limits for entry in whole.keys] == [QuotaLimitsPart(requests_per_minute=60), None]


def test_git_wins_a_name_conflict_and_reports_it() -> None:
    whole, problems = merge_api(compiled(), book(api_model(BOT), keys=(key("git-key"),)))
    assert whole == compiled()
    assert problems == (
        "the registry's acme/bot is left out: 3.yaml declares it as well",
        "the registry's key git-key is left out: a Tenant declares it as well",
    )


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (api_model("globex/bot"), "there is no tenant globex"),
        (ApiModel(api_model().id, "gone", "", api_model().versions), "there is no pool gone"),
    ],
)
def test_unservable_api_model_is_left_out_with_its_reason(model: ApiModel, why: str) -> None:
    whole, problems = merge_api(compiled(), book(model))
    assert whole == compiled()
    assert len(problems) == 1
    assert why in problems[0]


def test_api_models_survive_a_change_of_git() -> None:
    rows = book(api_model("acme/api"), keys=(key("ci"),))
    published, _ = merge_api(compiled(), rows)
    assert with_api_of(published, compiled(), rows) == published
    without_tenant = msgspec.structs.replace(compiled(), tenants=(), keys=())
    assert with_api_of(published, without_tenant, rows) == without_tenant
    taken = msgspec.structs.replace(compiled(), models=published.models[:1], pools=())
    assert with_api_of(published, taken, rows).models == taken.models


def test_key_of_an_undeclared_tenant_is_left_out() -> None:
    stranger = ApiKeyRow(key().key_id, "globex", "0" * 64)
    whole, problems = merge_api(compiled(), book(keys=(stranger,)))
    assert whole == compiled()
    assert problems == ("the registry's key ci is left out: there is no tenant globex",)


def test_model_with_a_missing_policy_gets_the_built_in_one() -> None:
    careful = ApiModel(api_model().id, "base", "careful", api_model().versions)
    assert [merge_api(compiled(), book(one))[0].models[0].rollout for one in (careful, api_model())] == ["careful", ""]


def test_channel_with_a_reserved_name_is_left_out() -> None:
    """An older registry accepted the channel; engines would keep its version for ever."""
    one = msgspec.structs.replace(api_model(), channels={"stable": "v1", "incoming": "v1"})
    assert merge_api(compiled(), book(one))[0].models[0].channels == {"stable": "v1"}


def test_api_models_without_room_are_left_out_and_gits_part_is_published() -> None:
    """One tenant's versions must not block the publication of pushes and keys of all others."""
    models = tuple(many(f"acme/api-{number}", versions=number) for number in range(1, 30))
    git_bytes = sum(map(len, full_lines(compiled())))
    max_bytes = 2 * git_bytes + 8_000
    whole, problems = merge_api(compiled(), book(*models, keys=(key("ci"),)), max_bytes)
    assert sum(map(len, full_lines(whole))) <= max_bytes
    snapshots.decode(snapshots.encode(whole))
    assert {model.id for model in compiled().models} < {model.id for model in whole.models}
    assert {"ci", "git-key"} == {entry.key_id for entry in whole.keys}
    kept = [model for model in models if model.id in {entry.id for entry in whole.models}]
    assert kept == list(models[: len(kept)])  # the smallest models
    (problem,) = problems
    assert problem.startswith(f"{len(models) - len(kept)} of acme's models and keys in the registry are left out (")
    assert merge_api(compiled(), book(*models))[1] == ()


@pytest.mark.parametrize("full_ratio", [0.9, 0.99])
def test_api_models_that_fit_beside_git_and_splits_are_kept(full_ratio: float) -> None:
    rows = book(*[api_model(f"acme/api-{number}") for number in range(40)], keys=(key("ci"),))
    whole, _ = merge_api(compiled(), rows)
    max_bytes = int(sum(map(len, full_lines(whole))) / full_ratio)
    assert merge_api(compiled(), rows, max_bytes) == (whole, ())
    under_way = (rollout(id=RolloutId(f"r{number}"), channel=f"c{number}") for number in range(max_bytes // 200))
    rolling = fold_page(rows, page(6, *under_way))
    assert len(merge_api(compiled(), rolling, max_bytes)[0].models) < len(whole.models)  # the splits need their room


def test_keys_keep_their_room_beside_a_large_git_part() -> None:
    """A caller without a key gets no service at all; a missing model is only one model less."""
    git_bytes = sum(map(len, full_lines(compiled())))
    rows = book(*[many(f"acme/api-{number}", versions=20) for number in range(9)], keys=(key("ci"), key("cd")))
    whole, (problem,) = merge_api(compiled(), rows, int(git_bytes / 0.7))
    assert {"ci", "cd"} < {entry.key_id for entry in whole.keys}
    assert "9 of acme's models and keys" in problem


def many(id_: str, versions: int) -> ApiModel:
    named = tuple(ApiVersion(f"v{number}", digest(f"{id_}{number}"), "s3://b/x") for number in range(versions))
    return msgspec.structs.replace(api_model(id_), versions=named, channels={})


def test_revoked_api_key_is_removed_and_gits_key_of_that_name_stays() -> None:
    whole, _ = merge_api(compiled(), book(keys=(key("ci"),)))
    later = fold_page(book(keys=(key("ci"),)), page(6, keys=(key("ci", revoked=True), key("git-key", revoked=True))))
    assert [entry.key_id for entry in without_revoked(whole, later).keys] == ["git-key"]
    again = fold_page(later, page(7, keys=(key("ci"),)))
    assert without_revoked(whole, again) == whole


def test_revoked_key_never_returns_through_a_stand_in() -> None:
    """The stand-in of a broken Tenant may have been read before the book knew that the key belongs to the registry."""
    rows = fold_page(book(keys=(key("ci"),)), page(6, keys=(key("ci", revoked=True),)))
    with_key, _ = merge_api(compiled(), book(keys=(key("ci"),)))
    assert "ci" in {entry.key_id for entry in with_key.keys}
    for _ in range(3):
        whole, problems = merge_api(with_key, rows)
        assert [entry.key_id for entry in whole.keys] == ["git-key"]
        assert problems == ("the key ci is left out: it was revoked in the registry",)


async def registered(rig: Rig, version: str) -> None:
    content = digest_of(version)
    row = StoredArtifact(content, "acme", "", 1000, {"rank": 4})
    rig.database.write(Actor("test"), lambda write: artifacts.put_artifact(write, row))
    body = {"digest": content, "base_model": "base", "adapter_type": "lora", "rollout": "default"}
    path = f"/v1/models/acme/api/versions/{version}"
    answer = await rig.client.put(path, json=body, headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 201, answer.text


async def pointed(rig: Rig, version: str) -> int:
    path = "/v1/models/acme/api/channels/stable"
    answer = await rig.client.post(path, json={"version": version}, headers={"authorization": f"Bearer {TOKEN}"})
    return answer.status_code


async def test_a_model_of_the_api_is_published_and_rolled_out(rig: Rig) -> None:
    rig.controller()
    rig.declared = fleet("v1", stable="v1")
    await rig.seconds(2)
    await registered(rig, "v1")
    assert await pointed(rig, "v1") in {200, 201}
    await rig.seconds(2)
    api = next(model for model in rig.snapshot.models if model.id == "acme/api")
    assert api.channels == {"stable": "v1"}
    await registered(rig, "v2")
    assert await pointed(rig, "v2") == 202
    await rig.seconds(4)
    api = next(model for model in rig.snapshot.models if model.id == "acme/api")
    (split,) = api.splits
    assert (api.channels, split.candidate, split.percent) == ({"stable": "v1"}, "v2", 10)
    (row,) = await rig.rollouts()
    assert (await rig.order(row.id, "promote")).status_code == 200
    await rig.seconds(2)
    api = next(model for model in rig.snapshot.models if model.id == "acme/api")
    assert (api.channels, api.splits) == ({"stable": "v2"}, ())


async def test_declaration_does_not_change_content_served_by_the_api(rig: Rig) -> None:
    """Versions do not change: the declared model is held, with a message, until its content is the served one."""
    controller = rig.controller()
    rig.declared = fleet("v1", stable="v1")
    await rig.seconds(2)
    for version in ("v1", "v2"):
        await registered(rig, version)
    assert await pointed(rig, "v1") == 200
    await rig.seconds(2)
    before = served(rig)
    rig.read_digest = lambda uri: digest("other") if uri.endswith("acme/api/v1") else digest_of(uri)
    changed_to(rig, "v1", "v2")
    outcome = await controller.publish()
    assert served(rig) == before
    assert (outcome.kind, outcome.complete) == ("unchanged", False)
    (why,) = outcome.refused
    assert why.startswith(
        f"5.yaml: acme/api@v1 is {digest('v1')} in the API and {digest('other')} here: versions never"
    )
    rig.read_digest = digest_of
    changed_to(rig, "v1")
    (why,) = (await controller.publish()).refused
    assert "acme/api@v2" in why, "nor do they go away"
    assert served(rig) == before
    changed_to(rig, "v1", "v2")
    outcome = await controller.publish()
    assert (outcome.refused, outcome.complete) == ((), True), "the API's rows that are left over hold up nothing"
    assert "acme/api" in outcome.left_out[0]
    assert served(rig).declared_in == "5.yaml"
    assert [one.digest for one in served(rig).versions] == [one.digest for one in before.versions]


async def test_rows_of_a_now_declared_id_can_be_deleted(rig: Rig) -> None:
    controller = rig.controller()
    rig.declared = fleet("v1", stable="v1")
    await rig.seconds(2)
    await registered(rig, "v1")
    await rig.seconds(2)
    changed_to(rig, "v1")
    assert len((await controller.publish()).left_out) == 1
    operator = {"authorization": f"Bearer {TOKEN}"}
    assert (await rig.client.delete("/v1/models/acme/api", headers=operator)).status_code == 204
    again = await rig.client.delete("/v1/models/acme/api", headers=operator)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "declared_in_git")
    await controller.rows.fetch_changes()
    assert (await controller.publish()).left_out == ()
    assert served(rig).declared_in == "5.yaml"


async def test_declared_model_id_is_reserved_while_its_artifact_is_missing(rig: Rig) -> None:
    def read(uri: str) -> Digest:
        if "acme/api" in uri:
            raise ArtifactMissing("nothing there")
        return digest_of(uri)

    rig.read_digest = read
    controller = rig.controller()
    changed_to(rig, "v1")
    assert not (await controller.publish()).complete
    body = {"digest": digest_of("v1"), "base_model": "base", "adapter_type": "lora"}
    operator = {"authorization": f"Bearer {TOKEN}"}
    answer = await rig.client.put("/v1/models/acme/api/versions/v1", json=body, headers=operator)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "declared_in_git")
    rig.read_digest = digest_of
    assert (await controller.publish()).complete
    assert [version.name for version in served(rig).versions] == ["v1"]


def changed_to(rig: Rig, *versions: str) -> None:
    rig.declared = fleet("v1", stable="v1", more=(lora("acme/api", *versions),))


def served(rig: Rig) -> ModelEntry:
    return next(model for model in rig.snapshot.models if model.id == "acme/api")


async def test_revocation_is_published_while_declarations_are_suspended(rig: Rig) -> None:
    """The branch is suspended or its tip refused: the holder of the revoked key must lose access all the same."""
    controller = rig.controller()
    rig.declared = fleet("v1", stable="v1")
    await rig.seconds(2)
    operator = {"authorization": f"Bearer {TOKEN}"}
    made = await rig.client.post(
        "/v1/tenants/acme/keys", json={"id": "laptop", "scopes": ["inference"]}, headers=operator
    )
    assert made.status_code == 201, made.text
    await rig.seconds(2)
    assert "laptop" in {entry.key_id for entry in rig.snapshot.keys}
    rig.declared = fleet("v1", "v2", stable="v2")
    assert (await rig.client.delete("/v1/tenants/acme/keys/laptop", headers=operator)).status_code in {200, 204}
    await controller.rows.fetch_changes()
    assert (await controller.follow_rows()).kind == "published"
    assert "laptop" not in {entry.key_id for entry in rig.snapshot.keys}
    assert {one.name for one in rig.bot.versions} == {"v1"}
