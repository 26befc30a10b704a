"""Catalogue: references resolve to versions, and a model that a tenant may not call does not exist for it."""

import pytest
from msgspec.structs import replace

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, EngineName, ModelId, PoolName, RolloutId, TenantId
from functions.api.snapshot import ModelEntry, PoolEntry, Snapshot, SplitEntry, TenantEntry, VersionEntry
from functions.decisions.catalogue import Catalogue

D1, D2 = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
POOL = PoolName("base")


def version(name: str, digest: Digest, engine_name: str) -> VersionEntry:
    return VersionEntry(name=name, digest=digest, engine_name=EngineName(engine_name), artifact_uri="s3://b/x")


def lora(id_: str) -> ModelEntry:
    versions = (version("v1", D1, f"{id_}@1"), version("v2", D2, f"{id_}@2"))
    return ModelEntry(ModelId(id_), POOL, "lora", versions, {"stable": "v1", "canary": "v2"})


def catalogue() -> Catalogue:
    base = ModelEntry(ModelId("base"), POOL, "base", (version("v1", D1, "base"),), {"stable": "v1"})
    patterns = {"acme": ("acme/*", "base"), "globex": ("globex/*",), "root": ("*",), "exact": ("acme/bot",)}
    snapshot = Snapshot(
        schema_version=snapshots.SCHEMA_VERSION,
        epoch=5,
        revision="r",
        compiled_unix_s=0.0,
        tenants=tuple(TenantEntry(TenantId(name), "t", models) for name, models in patterns.items()),
        keys=(),
        models=(lora("globex/bot"), base, lora("acme/bot"), lora("acme/bot2")),
        pools=(PoolEntry(POOL, 2048),),
    )
    return Catalogue(snapshot, snapshots.content_hash(snapshot))


@pytest.mark.parametrize(
    ("requested", "version_name"),
    [
        ("acme/bot", "v1"),
        ("acme/bot:stable", "v1"),
        ("acme/bot:canary", "v2"),
        ("acme/bot@v2", "v2"),
        (f"acme/bot@{D2}", "v2"),
        ("acme/bot:gone", None),
        ("acme/bot@v3", None),
        (f"acme/bot@sha256:{'3' * 64}", None),
        ("acme/nobody", None),
        ("globex/bot", None),
        ("not a reference", None),
    ],
)
def test_references_become_versions(requested: str, version_name: str | None) -> None:
    resolved = catalogue().resolve(TenantId("acme"), requested)
    assert (resolved.version if resolved is not None else None) == version_name


def test_resolved_model_contains_what_the_relay_needs() -> None:
    resolved = catalogue().resolve(TenantId("acme"), "acme/bot:canary")
    assert resolved is not None
    assert (resolved.requested, resolved.served_as) == ("acme/bot:canary", "acme/bot@v2")
    assert (resolved.engine_name, resolved.digest, resolved.is_adapter) == ("acme/bot@2", D2, True)
    assert (resolved.pool, resolved.context_window_tokens) == ("base", 2048)


def split_catalogue() -> Catalogue:
    before = catalogue().snapshot
    splits = (SplitEntry("stable", RolloutId("ro-12345678"), 3, 25, "v2", "tenant"),)
    models = tuple(replace(model, splits=splits) if model.id == "acme/bot" else model for model in before.models)
    split = replace(before, models=models)
    return Catalogue(split, snapshots.content_hash(split))


@pytest.mark.parametrize("requested", ["acme/bot", "acme/bot:stable"])
def test_channel_in_rollout_has_both_versions(requested: str) -> None:
    resolved = split_catalogue().resolve(TenantId("acme"), requested)
    assert resolved is not None
    assert resolved.split is not None
    assert (resolved.version, resolved.split.candidate.version) == ("v1", "v2")
    assert (resolved.split.rollout, resolved.split.stage, resolved.split.percent) == ("ro-12345678", 3, 25)
    assert (resolved.split.sticky, resolved.split.candidate.split) == ("tenant", None)
    assert (resolved.split.candidate.engine_name, resolved.split.candidate.requested) == ("acme/bot@2", requested)


@pytest.mark.parametrize("requested", ["acme/bot@v1", "acme/bot:canary", f"acme/bot@{D1}", "acme/bot2"])
def test_named_version_or_other_channel_has_no_split(requested: str) -> None:
    resolved = split_catalogue().resolve(TenantId("acme"), requested)
    assert resolved is not None
    assert resolved.split is None


def test_a_base_is_no_adapter() -> None:
    resolved = catalogue().resolve(TenantId("acme"), "base")
    assert resolved is not None
    assert (resolved.engine_name, resolved.is_adapter) == ("base", False)


@pytest.mark.parametrize(
    ("tenant", "ids"),
    [
        ("acme", ["acme/bot", "acme/bot2", "base"]),
        ("globex", ["globex/bot"]),
        ("root", ["acme/bot", "acme/bot2", "base", "globex/bot"]),
        ("exact", ["acme/bot"]),
        ("nobody", []),
    ],
)
def test_a_tenant_sees_what_its_patterns_name_and_nothing_else(tenant: str, ids: list[str]) -> None:
    it = catalogue()
    assert [model.id for model in it.callable_models(TenantId(tenant))] == ids
    for model_id in it.models:
        assert it.may_call(TenantId(tenant), model_id) == (model_id in ids)
        assert (it.resolve(TenantId(tenant), model_id) is not None) == (model_id in ids)


def test_resolution_is_not_cached_across_tenants() -> None:
    shared = catalogue()
    assert shared.resolve(TenantId("acme"), "acme/bot") is not None
    assert shared.resolve(TenantId("globex"), "acme/bot") is None
    assert shared.resolve(TenantId("acme"), "acme/bot") is shared.resolve(TenantId("acme"), "acme/bot")


def test_names_that_do_not_exist_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("functions.decisions.catalogue._MAX_REMEMBERED", 3)
    asked = catalogue()
    for number in range(100):
        asked.resolve(TenantId("root"), f"acme/made-up-{number}")
    for reference in ("acme/bot", "acme/bot:stable", "acme/bot@v1", "acme/bot@v2", "acme/bot:canary", "base"):
        assert asked.resolve(TenantId("root"), reference) is not None
        assert len(asked._resolved_before) <= 3
