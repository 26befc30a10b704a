"""Generated traffic: tenants, adapters, bursts, the daily curve and spikes match their settings."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from functions.simulator.workload.crowd import Spike, drawn, rounded, spread
from functions.simulator.workload.synthetic import Traffic, merged, synthetic


def test_a_bursty_sender_keeps_its_rate() -> None:
    rng = np.random.default_rng(1)
    counts, cvs = np.array([1000, 0, 7]), np.array([9.0, 1.0, 0.5])
    found = spread(counts, cvs, rng)
    assert Counter(found.owners.tolist()) == {0: 1000, 2: 7}
    assert all(0.0 <= one <= other <= 1.0 for one, other in pairwise(found.times.tolist()))


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_gaps_have_the_requested_cv(cv: float) -> None:
    rng = np.random.default_rng(2)
    gaps = np.concatenate([np.diff(spread(np.array([500]), np.array([cv]), rng).times) for _ in range(40)])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.2)


def test_extreme_burstiness_gives_finite_times() -> None:
    """A gamma of shape 0.0001 is nearly always 0 in floating point."""
    found = spread(np.full(200, 3), np.full(200, 100.0), np.random.default_rng(3))
    assert len(found.times) == 600
    assert np.isfinite(found.times).all()


def test_counts_vary_with_burstiness() -> None:
    """Worked example: 100 on average with cv 3 have a standard deviation of 30; without bursts, of 10."""
    rng = np.random.default_rng(4)
    for cv, deviation in ((3.0, 30.0), (1.0, 10.0), (0.2, 10.0)):
        counts = drawn(np.full(4000, 100.0), np.full(4000, cv), rng)
        assert counts.mean() == pytest.approx(100.0, rel=0.03)
        assert counts.std() == pytest.approx(deviation, rel=0.1)


def test_fractional_counts_are_rounded_at_random() -> None:
    counts = rounded(np.full(10_000, 2.3), np.random.default_rng(5))
    assert set(counts.tolist()) == {2, 3}
    assert counts.mean() == pytest.approx(2.3, rel=0.01)


def test_spike_rises_within_its_rise_time() -> None:
    """The worked example of the prologue: 5 times within 30 s."""
    spike = Spike(at_s=100.0, factor=5.0, rise_s=30.0, lasts_s=100.0)
    heights = spike.height(np.array([99.0, 115.0, 130.0, 229.0, 245.0, 261.0])).tolist()
    assert heights == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.5, 0.0])
    traffic = Traffic(requests_per_s=50.0, seconds=300.0, turns=1, spikes=(spike,))
    per_10_s = Counter(int(asked.at_s // 10) for asked in synthetic(traffic, 1))
    before = sum(per_10_s[each] for each in range(10)) / 100
    top = sum(per_10_s[each] for each in range(13, 23)) / 100
    assert before == pytest.approx(50.0, rel=0.15)
    assert top == pytest.approx(250.0, rel=0.15)


def test_a_spike_of_one_adapter_leaves_all_others_alone() -> None:
    spike = Spike(at_s=60.0, factor=5.0, rise_s=0.0, lasts_s=60.0, adapter=1)
    traffic = Traffic(requests_per_s=200.0, seconds=120.0, turns=1, tenants=5, adapters=5, spikes=(spike,))
    counts: dict[bool, Counter[str | None]] = {False: Counter(), True: Counter()}
    for asked in synthetic(traffic, 1):
        counts[asked.at_s >= 60.0][asked.adapter] += 1
    assert counts[True]["a1"] / counts[False]["a1"] == pytest.approx(5.0, rel=0.2)
    assert counts[True][None] / counts[False][None] == pytest.approx(1.0, rel=0.1)
    assert counts[True]["a0"] / counts[False]["a0"] == pytest.approx(1.0, rel=0.3)


def test_a_day_rises_and_falls() -> None:
    traffic = Traffic(requests_per_s=20.0, seconds=1000.0, turns=1, swing_ratio=0.5, day_s=1000.0)
    per_tenth = Counter(int(asked.at_s // 100) for asked in synthetic(traffic, 1))
    assert per_tenth[0] / 100 == pytest.approx(10.0, rel=0.25)
    assert per_tenth[5] / 100 == pytest.approx(30.0, rel=0.25)


@pytest.mark.parametrize(("tenants", "adapters"), [(1000, 200), (20, 400)])
def test_adapter_share_matches_and_each_adapter_has_one_tenant(tenants: int, adapters: int) -> None:
    traffic = Traffic(requests_per_s=500.0, seconds=40.0, turns=1, tenants=tenants, adapters=adapters)
    used: Counter[str] = Counter()
    owners: dict[str, set[str]] = {}
    count = 0
    for asked in synthetic(traffic, 1):
        count += 1
        if asked.adapter is not None:
            used[asked.adapter] += 1
            owners.setdefault(asked.adapter, set()).add(asked.tenant)
    assert sum(used.values()) / count == pytest.approx(0.17, rel=0.1)
    assert all(len(of) == 1 for of in owners.values())
    assert set(used) <= {f"a{index}" for index in range(adapters)}
    assert sum(uses for _, uses in used.most_common(adapters // 10)) > 0.3 * sum(used.values())


def test_an_adapters_prompts_share_nothing_with_the_base_models() -> None:
    traffic = Traffic(requests_per_s=50.0, seconds=20.0, tenants=2, adapters=2, adapter_ratio=0.5)
    first = {(asked.tenant, asked.adapter): asked.blocks[:8] for asked in synthetic(traffic, 1)}
    assert len(set(first.values())) == len(first) == 4


def test_some_tenants_are_much_more_bursty_than_most() -> None:
    traffic = Traffic(
        requests_per_s=400.0, seconds=120.0, turns=1, tenants=40, zipf=0.0, burstiness=1.2, burstiness_p95=9.0
    )
    times: dict[str, list[float]] = {}
    for asked in synthetic(traffic, 3):
        times.setdefault(asked.tenant, []).append(asked.at_s)
    cvs = sorted(float(np.std(gaps) / np.mean(gaps)) for one in times.values() if len(gaps := np.diff(one)) > 50)
    assert 0.8 < cvs[len(cvs) // 2] < 2.0
    assert cvs[-1] > 4.0


def test_more_chats_than_fit_in_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="ask for turns=1"):
        Traffic(requests_per_s=100_000.0, seconds=1.0)
    assert Traffic(requests_per_s=100_000.0, seconds=1.0, turns=1).turns == 1


def test_workloads_of_pools_are_merged_in_order() -> None:
    parts = [
        synthetic(Traffic(requests_per_s=20.0, seconds=10.0, pool=pool), seed) for seed, pool in enumerate(("a", "b"))
    ]
    found = list(merged(*parts))
    assert {asked.pool for asked in found} == {"a", "b"}
    assert all(one.at_s <= other.at_s for one, other in pairwise(found))
