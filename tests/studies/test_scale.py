"""The planned scale in small: regions side by side, and the loss of one."""

from collections import Counter
from dataclasses import replace

import pytest

from studies.scale.run import run_region
from studies.scale.setting import Scale, own_requests, pool_shares, replicas_of_pools, requests_of

SMALL = Scale(requests_per_s=40.0, replicas=24, seconds=8.0, regions=4, pools=3, gateways=2, tenants=50, models=30)
LOSING = replace(SMALL, lost_at_s=3.0, failover_s=1.0)


def test_replicas_follow_the_load_and_add_up() -> None:
    scale = Scale()
    counts = [replicas_of_pools(scale, region) for region in range(scale.regions)]
    assert sum(map(sum, counts)) == 5000
    assert counts[0] == sorted(counts[0], reverse=True)
    assert counts[0][0] / sum(counts[0]) == pytest.approx(pool_shares(scale)[0], rel=0.05)


def test_too_small_a_fleet_and_a_lone_region_are_refused() -> None:
    with pytest.raises(ValueError, match="need 24"):
        replace(SMALL, replicas=23)
    with pytest.raises(ValueError, match="two or more"):
        replace(SMALL, regions=1, lost_at_s=3.0)


def test_requests_of_a_lost_region_are_sent_once() -> None:
    """Every request of the lost region's clients is sent once, there or in another region."""
    lost = LOSING.lost_region
    assert lost == 3
    before = Counter(asked.session for asked in own_requests(LOSING, lost))
    there = Counter(asked.session for asked in requests_of(LOSING, lost))
    elsewhere: Counter[str | None] = Counter()
    for region in range(3):
        here = list(requests_of(LOSING, region))
        assert [asked.at_s for asked in here] == sorted(asked.at_s for asked in here)
        strangers = [asked for asked in here if asked.session is not None and asked.session.startswith("3-")]
        assert all(asked.at_s >= 4.0 for asked in strangers), "names lead here from then on"
        elsewhere.update(asked.session for asked in strangers)
    assert there + elsewhere == before


def test_interrupted_requests_are_retried_in_other_regions() -> None:
    lost = run_region(LOSING, 3, [])
    assert lost.seconds == pytest.approx(3.0)
    assert lost.broken
    assert len(lost.broken) + lost.served + sum(lost.shed.values()) >= lost.asked
    kept = run_region(LOSING, 0, lost.broken)
    alone = run_region(SMALL, 0, [])
    came = [each for each in requests_of(LOSING, 0, lost.broken) if each.session is not None]
    assert kept.asked == len(came) > alone.asked
    assert kept.asked == kept.served + sum(kept.shed.values()) + sum(kept.lost.values())
    assert sum(point.asked for point in kept.points) <= kept.asked


def test_same_seed_gives_the_same_scale_run() -> None:
    first, second = (run_region(SMALL, 1, []) for _ in range(2))
    assert (first.asked, first.ttft.buckets(), first.events) == (second.asked, second.ttft.buckets(), second.events)
    assert run_region(replace(SMALL, seed=1), 1, []).ttft.buckets() != first.ttft.buckets()
