"""The compiler: equal content gives an equal snapshot, and one missing artifact removes one version."""

import random
from datetime import UTC, datetime

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, TenantId
from functions.api.loader import load_texts
from functions.api.snapshot import Snapshot
from functions.controller.snapshot.compile import Compiled, compile_snapshot, unpinned_artifacts
from functions.decisions.catalogue import Catalogue
from tests.controller.configs import base, load, lora, policies, pool, tenant, tier

V1, V2 = "s3://shoal-models/acme/bot/v1", "s3://shoal-models/acme/bot/v2"
WEIGHTS = "pvc://shoal-models/base"
D1, D2, D3 = (Digest("sha256:" + digit * 64) for digit in "123")
DIGESTS = {V1: D1, V2: D2, WEIGHTS: D3}


def compiled(*documents: str, digests: dict[str, Digest] | None = None) -> Compiled:
    objects = load(*documents).objects
    return compile_snapshot(
        objects, DIGESTS if digests is None else digests, epoch=7, revision="abc", compiled_unix_s=5.0
    )


def sound(it: Snapshot) -> bool:
    """Return whether the data plane would accept the snapshot."""
    return snapshots.decode(snapshots.encode(it)) == it


def test_all_declared_objects_reach_the_snapshot() -> None:
    result = compiled(
        pool(), tenant("acme", "ci"), base(), lora("acme/bot", "v1", "v2", channels="{stable: v1, next: v2}")
    )
    it = result.snapshot
    assert result.problems == ()
    assert sound(it)
    assert (it.epoch, it.revision, it.compiled_unix_s) == (7, "abc", 5.0)
    assert [(key.key_id, key.tenant, key.scopes, key.max_class) for key in it.keys] == [
        ("ci", "acme", ("inference",), "interactive")
    ]
    bot, weights = it.models
    assert (bot.id, bot.pool, bot.type, bot.channels) == ("acme/bot", "base", "lora", {"stable": "v1", "next": "v2"})
    assert [(v.name, v.digest, v.engine_name) for v in bot.versions] == [
        ("v1", D1, "acme/bot@sha256:1111111111111111"),
        ("v2", D2, "acme/bot@sha256:2222222222222222"),
    ]
    assert (weights.id, weights.versions[0].engine_name) == ("base", "base"), "the engine serves a base by its own name"
    assert bot.declared_in == "3.yaml"
    assert [(p.name, p.context_window_tokens, p.min_replicas) for p in it.pools] == [("base", 2048, 1)]


def test_adapter_limits_of_a_pool_come_from_engine_arguments() -> None:
    arguments = "[--max-model-len=2048, --enable-lora, --max-cpu-loras=32, --max-lora-rank=64]"
    (entry,) = compiled(pool().replace("[--max-model-len=2048]", arguments)).snapshot.pools
    assert (entry.max_adapters, entry.max_lora_rank) == (32, 64)
    (silent,) = compiled(pool()).snapshot.pools
    assert (silent.max_adapters, silent.max_lora_rank) == (None, None)


def test_a_version_without_an_artifact_is_left_out_with_its_channel() -> None:
    model = lora("acme/bot", "v1", "v2", channels="{stable: v1, next: v2}")
    result = compiled(pool(), tenant("acme"), model, digests={V1: D1})
    assert sound(result.snapshot)
    (bot,) = result.snapshot.models
    assert ([version.name for version in bot.versions], bot.channels) == (["v1"], {"stable": "v1"})
    assert [str(problem).split(": ", 2)[1:] for problem in result.problems] == [
        ["spec.versions[1]", f"acme/bot@v2 is left out: nothing is published at {V2}"],
        ["spec.channels.next", "acme/bot:next is left out because its version v2 is"],
    ]
    assert all(problem.place.file == "2.yaml" and problem.place.line == 4 for problem in result.problems)


def test_a_model_without_any_artifact_is_left_out_and_the_rest_goes_on() -> None:
    result = compiled(pool(), tenant("acme"), base(), lora("acme/bot", "v1"), digests={WEIGHTS: D3})
    assert sound(result.snapshot)
    assert [(model.id, len(model.versions)) for model in result.snapshot.models] == [("acme/bot", 0), ("base", 1)]
    assert Catalogue(result.snapshot, "").resolve(TenantId("acme"), "acme/bot") is None
    assert [model.id for model in Catalogue(result.snapshot, "").callable_models(TenantId("acme"))] == ["base"]
    assert "acme/bot is left out: none of its versions has an artifact" in "\n".join(map(str, result.problems))


def test_pinned_digest_overrides_the_stores_answer() -> None:
    model = lora("acme/bot", "v1", pin=f', digest: "{D3}"')
    loaded = load(pool(), tenant("acme"), model)
    assert unpinned_artifacts(loaded.objects) == []
    result = compiled(pool(), tenant("acme"), model, digests={V1: D1})
    assert result.snapshot.models[0].versions[0].digest == D3


def test_artifacts_to_look_up_are_each_named_once() -> None:
    loaded = load(pool(), tenant("acme"), base(), lora("acme/bot", "v1", "v2"))
    assert unpinned_artifacts(loaded.objects) == [WEIGHTS, V1, V2]


def test_an_expiry_date_becomes_the_end_of_its_day() -> None:
    result = compiled(tenant("acme", "ci", extra=", expires: 2027-06-30"))
    assert result.snapshot.keys[0].expires_unix_s == datetime(2027, 7, 1, tzinfo=UTC).timestamp()


def test_foreign_service_is_not_a_pool() -> None:
    foreign = pool().replace(", labels: {shoal.dev/pool: base}", "")
    assert compiled(foreign, tenant("acme")).snapshot.pools == ()


def test_replicas_without_a_maximum_are_bounded() -> None:
    result = compiled(pool(bounds="minReplicas: 2, maxReplicas: 0"))
    assert result.snapshot.pools[0].max_replicas == 100_000
    assert sound(result.snapshot)


DOCUMENTS = [
    tier(),
    policies(),
    pool(),
    pool("other"),
    tenant("globex", "z", "a"),
    tenant("acme", "m", models='[base, "acme/*", base]'),
    base(),
    lora("acme/bot", "v2", "v1", channels="{stable: v1, next: v2, dev: v1}"),
    lora("globex/bot", "v1"),
]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 10**6), st.text(max_size=10))
def test_input_order_does_not_change_the_hash(rng: random.Random, epoch: int, revision: str) -> None:
    digests = {V1: D1, V2: D2, WEIGHTS: D3}

    def built(documents: list[tuple[str, bytes]], epoch: int, revision: str) -> Compiled:
        objects = load_texts(documents).objects
        return compile_snapshot(objects, digests, epoch=epoch, revision=revision, compiled_unix_s=float(epoch))

    named = [(f"{number}.yaml", text.encode()) for number, text in enumerate(DOCUMENTS)]
    first = built(named, 1, "")
    document = snapshots.encode(msgspec.structs.replace(first.snapshot, epoch=0, revision="", compiled_unix_s=0.0))
    again = built(rng.sample(named, len(named)), epoch, revision)
    assert snapshots.content_hash(again.snapshot) == snapshots.content_hash(first.snapshot)
    assert again.problems == first.problems
    same = msgspec.structs.replace(again.snapshot, epoch=0, revision="", compiled_unix_s=0.0)
    assert snapshots.encode(same) == document, "not only the hash: the bytes"


def test_arrays_are_sorted_and_deduplicated() -> None:
    it = compiled(*reversed(DOCUMENTS)).snapshot
    assert [tenant_.name for tenant_ in it.tenants] == ["acme", "globex"]
    assert it.tenants[0].models == ("acme/*", "base")
    assert [key.key_id for key in it.keys] == ["a", "m", "z"]
    assert [pool_.name for pool_ in it.pools] == ["base", "other"]
    assert [version.name for version in it.models[0].versions] == ["v1", "v2"]
