"""A single client that waits as long as a rejection says is admitted, for all limits of tenant and key together."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from functions.api.ids import TenantId
from functions.api.snapshot import QuotaEntry, QuotaLimitsPart
from functions.decisions.request.features import RequestFeatures
from functions.gateway.errors import OverQuota
from functions.gateway.quota.accounts import RequestQuota, TenantQuotas
from tests.gateway.rig import ACME_KEY, key_entry

ACME = TenantId("acme")
limit = st.one_of(st.none(), st.integers(1, 5_000))
limits = st.builds(
    QuotaLimitsPart,
    input_tokens_per_minute=limit,
    output_tokens_per_minute=limit,
    kv_token_seconds_per_minute=limit,
    gpu_seconds_per_hour=limit,
    token_burst_seconds=st.one_of(st.none(), st.integers(1, 120)),
)
requests = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 400), st.floats(0.0, 500.0), st.floats(0.0, 20.0)), max_size=20
)


def wait_told(refused: OverQuota) -> float:
    told_ms = next(value for name, value in refused.headers if name == b"retry-after-ms")
    return int(told_ms) / 1000


@settings(deadline=None)
@given(limits, limits, requests, st.tuples(st.integers(0, 400), st.integers(0, 400)))
def test_retry_after_is_exactly_the_wait(
    of_tenant: QuotaLimitsPart,
    of_key: QuotaLimitsPart,
    before: list[tuple[int, int, float, float]],
    last: tuple[int, int],
) -> None:
    quotas, tier = TenantQuotas(), QuotaEntry("tier", limits=of_tenant)
    key = structs.replace(key_entry(ACME_KEY, "acme"), limits=of_key)

    def enter_and_reserve(prompt_tokens: int, output_tokens: int, now_s: float) -> RequestQuota | OverQuota:
        try:
            entry = quotas.enter(ACME, tier, now_s, key)
        except OverQuota as refused:
            return refused
        try:
            entry.reserve(RequestFeatures(4, prompt_tokens, False, 400, output_tokens), now_s)
        except OverQuota as refused:
            entry.leave(now_s)
            return refused
        return entry

    for prompt_tokens, output_tokens, kv_token_s, gpu_s in before:
        entry = enter_and_reserve(prompt_tokens, output_tokens, 0.0)
        if isinstance(entry, RequestQuota):
            entry.settle(None, output_tokens, kv_token_s, gpu_s, 0.0)
            entry.leave(0.0)
    refused = enter_and_reserve(*last, 0.0)
    assume(isinstance(refused, OverQuota) and refused.answer.status == 429)
    assert isinstance(refused, OverQuota)
    then_s = wait_told(refused)
    assert isinstance(enter_and_reserve(*last, then_s), RequestQuota)
