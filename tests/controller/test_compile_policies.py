"""Policies in the snapshot: numeric units, canonical expressions and references."""

from functions.api import snapshot as snapshots
from functions.api.ids import Digest, PoolName
from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    BandEntry,
    CascadeEntry,
    ClassifierEntry,
    FallbackEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RolloutEntry,
    RoutingEntry,
    RuleEntry,
    Snapshot,
    StageEntry,
)
from functions.controller.snapshot.compile import compile_snapshot, unpinned_artifacts
from tests.controller.configs import base, load, lora, policies, pool, tenant, tier


def compiled(*documents: str) -> Snapshot:
    objects = load(*documents).objects
    digests = dict.fromkeys(unpinned_artifacts(objects), Digest("sha256:" + "1" * 64))
    it = compile_snapshot(objects, digests, epoch=1, revision="r", compiled_unix_s=0.0).snapshot
    assert snapshots.decode(snapshots.encode(it)) == it, "the data plane would take it"
    return it


def test_policies_compile_to_numeric_units_and_canonical_expressions() -> None:
    quota = tier(spec="{weight: 2, limits: {requestsPerMinute: 60, maxOutputTokens: 100}}")
    it = compiled(quota, pool(), pool("other"), tenant("acme"), base(), lora("acme/bot", "v1"), policies())
    limits = QuotaLimitsPart(requests_per_minute=60, max_output_tokens=100, token_burst_seconds=10)
    assert it.quotas == (QuotaEntry("standard", 2.0, limits),)
    fallback = FallbackEntry("saturated", PoolName("base"), PoolName("other"), ("standard",))
    assert it.routing == (
        RoutingEntry("llamas", ("base", "other*"), 60.0, "sent", 2.0, 1.0, 2, 0.5, fallback=(fallback,)),
    )
    bands = (BandEntry("interactive", 0.5, 500), BandEntry("batch", 0.25))
    assert it.admission == (AdmissionEntry("default", ("*",), bands, 9000),)
    stages = (StageEntry(10, 300.0, ("error_rate > 2%",)), StageEntry(100))
    assert it.rollouts == (RolloutEntry("default", stages, 7, "tenant", 0.005),)
    assert it.autoscaling == (AutoscalingEntry("base", PoolName("base"), 1, 1, 1, ("kv_usage > 85% for 3m: +5%",)),)
    assert {model.rollout for model in it.models} == {"default"}


def test_without_a_default_rollout_the_stages_are_the_built_in_ones() -> None:
    assert {model.rollout for model in compiled(pool(), tenant("acme"), base(), lora("acme/bot", "v1")).models} == {""}


def test_omitted_policy_fields_equal_the_defaults_without_a_policy() -> None:
    """The defaults exist in two places: in the kind for omitted fields, and in the entry for a missing policy."""
    routing = compiled(
        pool(),
        "apiVersion: shoal.dev/v1alpha1\nkind: RoutingPolicy\nmetadata: {name: built-in}\nspec: {pools: ['*']}\n",
    ).routing
    assert routing == (RoutingEntry(name="built-in", pools=("*",)),)


def test_model_entry_does_not_depend_on_its_line_number() -> None:
    documents = (pool(), tenant("acme"), base(), lora("acme/bot", "v1"), tier())
    assert compiled("---\n".join(documents)) == compiled("# a remark\n" + "---\n".join(documents))


def test_cascades_hedging_and_classifiers_compile_to_snapshot_units() -> None:
    policy = (
        "apiVersion: shoal.dev/v1alpha1\nkind: RoutingPolicy\nmetadata: {name: all}\nspec:\n  pools: ['*']\n"
        "  retry: {hedgeAfter: 250ms}\n  unknownFields: pass\n"
        "  cascade: [{from: base, to: other, threshold: 1, maxTokens: 8, measure: p90}]\n"
        "  classifier: {model: auto, otherwise: base, rules: [{when: {keywords: [Prove]}, to: other}]}\n"
    )
    (routing,) = compiled(pool(), pool("other"), policy).routing
    assert (routing.hedge_after_s, routing.unknown_fields) == (0.25, "pass")
    assert routing.cascade == (CascadeEntry(PoolName("base"), PoolName("other"), (), 1.0, 8, "p90"),)
    rule = RuleEntry(PoolName("other"), keywords=("prove",))
    assert routing.classifier == ClassifierEntry("auto", PoolName("base"), (rule,))
