"""Policies of a pool and limits of a tenant's tier: the most specific pattern, or else the built-in defaults."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import (
    AdmissionEntry,
    BandEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RoutingEntry,
    Snapshot,
    TenantEntry,
)
from functions.decisions.catalogue import Catalogue
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, DEFAULT_ROUTING, most_specific

POOL = PoolName("llama-8b")


def routing(name: str, *pools: str) -> RoutingEntry:
    return RoutingEntry(name, pools)


@pytest.mark.parametrize(
    ("policies", "obeyed"),
    [
        ([routing("all", "*"), routing("llamas", "llama-*"), routing("exact", "llama-8b")], "exact"),
        ([routing("all", "*"), routing("llamas", "llama-*"), routing("l", "l*")], "llamas"),
        ([routing("all", "*"), routing("other", "qwen-*")], "all"),
        ([routing("several", "qwen", "llama-8b"), routing("llamas", "llama-*")], "several"),
        ([routing("b", "llama-*"), routing("a", "llama-*")], "a"),
        ([routing("whole-name", "llama-8b*"), routing("exact", "llama-8b")], "exact"),
        ([routing("longer", "llama-8b-instruct"), routing("other", "qwen")], "built-in"),
        ([], "built-in"),
    ],
)
def test_the_most_specific_pattern_wins(policies: list[RoutingEntry], obeyed: str) -> None:
    assert most_specific(policies, POOL, DEFAULT_ROUTING).name == obeyed


@given(
    st.lists(st.sampled_from(["*", "l*", "llama-*", "llama-8b", "llama-8b*", "q*"]), max_size=6),
    st.randoms(use_true_random=False),
)
def test_order_of_policies_does_not_matter(patterns: list[str], rng: random.Random) -> None:
    policies = [routing(f"p{number}", pattern) for number, pattern in enumerate(patterns)]
    shuffled = rng.sample(policies, len(policies))
    assert most_specific(policies, POOL, DEFAULT_ROUTING) == most_specific(shuffled, POOL, DEFAULT_ROUTING)


def catalogue() -> Catalogue:
    quota = QuotaEntry("standard", 2.0, QuotaLimitsPart(requests_per_minute=60))
    snapshot = Snapshot(
        snapshots.SCHEMA_VERSION,
        1,
        "r",
        0.0,
        tenants=(TenantEntry(TenantId("acme"), "standard", ()), TenantEntry(TenantId("odd"), "gone", ())),
        keys=(),
        models=(),
        pools=(PoolEntry(POOL, 2048), PoolEntry(PoolName("other"), 2048)),
        quotas=(quota,),
        routing=(routing("mine", "llama-*"),),
        admission=(AdmissionEntry("mine", ("llama-*",), (BandEntry("batch", 1.0),)),),
    )
    return Catalogue(snapshot, snapshots.content_hash(snapshot))


def test_a_tenant_has_the_quota_of_its_tier() -> None:
    quota = catalogue().quota_of(TenantId("acme"))
    assert quota is not None
    assert (quota.name, quota.limits.requests_per_minute, quota.limits.concurrent_requests) == ("standard", 60, None)
    assert catalogue().quota_of(TenantId("odd")) is None
    assert catalogue().quota_of(TenantId("nobody")) is None


def test_each_pool_has_its_policies() -> None:
    it = catalogue()
    assert (it.routing_for(POOL).name, it.admission_for(POOL).name) == ("mine", "mine")
    assert it.routing_for(POOL) is it.routing_for(POOL)
    assert it.routing_for(PoolName("other")) is DEFAULT_ROUTING
    assert it.admission_for(PoolName("other")) is DEFAULT_ADMISSION


def test_pools_that_do_not_exist_are_not_remembered() -> None:
    it = catalogue()
    for number in range(100):
        assert it.routing_for(PoolName(f"llama-{number}")) is DEFAULT_ROUTING
        assert it.admission_for(PoolName(f"llama-{number}")) is DEFAULT_ADMISSION
    assert (len(it._routing), len(it._admission)) == (0, 0)


def test_built_in_shares_add_up_to_one() -> None:
    assert sum(band.share_ratio for band in DEFAULT_ADMISSION.bands) == pytest.approx(1.0)
