"""Bound on limits across several regions in virtual time: modelled buses that report their use with a delay."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from functions.fleet.quota_leases import MICRO, NO_LIMIT, Group, LeaseRequest, RateRequest
from functions.fleet.quota_model import QuotaModel

LIMIT, BURST, PERIOD_S = 60_000, 1_000, 60
EVERY_S, WAY_S = 1.0, 0.5
US = 1_000_000


class Region:
    """Bus of one region with its grants and the charges for other regions' use."""

    def __init__(self) -> None:
        self.bus = QuotaModel()
        self.granted: list[tuple[float, int]] = []
        self.total = 0
        self.charged: dict[int, int] = defaultdict(int)  # by region

    def request_tokens(self, tokens: int, now_s: float) -> bool:
        rate = RateRequest(2, LIMIT, BURST * MICRO, PERIOD_S, tokens * MICRO, MICRO)
        group = Group(True, (LeaseRequest("acme", NO_LIMIT, 0, 0, (rate,)),))
        (answer,) = self.bus.request_leases("g0", [group], int(now_s * US)).granted
        if answer.ok:
            self.granted.append((now_s, tokens))
            self.total += tokens
        return answer.ok

    def charge(self, region: int, total: int, now_s: float) -> None:
        """Charge as `quota_regions.CHARGE` does: the current level plus the new use."""
        new, self.charged[region] = total - self.charged[region], total
        account = self.bus._accounts.get("acme")
        if account is None or not new:
            return
        level, since_us = account.levels.get(2, (0, int(now_s * US)))
        decayed = max(0, level - (int(now_s * US) - since_us) * LIMIT // PERIOD_S)
        account.levels[2] = (decayed + new * MICRO, int(now_s * US))


def play(demands: Sequence[tuple[float, int]], until_s: float, *, cut_at_s: float = float("inf")) -> list[Region]:
    """Request `tokens` from each region every `every_s` seconds; regions exchange their use each second."""
    regions = [Region() for _ in demands]
    events: list[tuple[float, int, int]] = []  # time, kind (0: report, 1: request), region
    for index, (every_s, _) in enumerate(demands):
        regions[index].request_tokens(1, 0.0)
        events += [(step * every_s, 1, index) for step in range(1, int(until_s / every_s))]
    events += [(step * EVERY_S, 0, index) for step in range(1, int(until_s)) for index in range(len(demands))]
    on_the_way: list[tuple[float, int, int]] = []
    for now_s, what, index in sorted(events):
        while on_the_way and on_the_way[0][0] <= now_s:
            at_s, of, total = on_the_way.pop(0)
            for other in range(len(regions)):
                if other != of and at_s < cut_at_s:
                    regions[other].charge(of, total, at_s)
        if what == 0:
            on_the_way.append((now_s + WAY_S, index, regions[index].total))
        else:
            regions[index].request_tokens(demands[index][1], now_s)
    return regions


def most_in_a_minute(regions: Sequence[Region]) -> int:
    """Return the most tokens that all regions together granted in any minute."""
    granted = sorted(each for region in regions for each in region.granted)
    most = first = held = 0
    for at_s, tokens in granted:
        held += tokens
        while granted[first][0] <= at_s - 60.0:
            held -= granted[first][1]
            first += 1
        most = max(most, held)
    return most


def bound(regions: int) -> float:
    delay_s = EVERY_S + WAY_S
    return LIMIT + regions * BURST + (regions - 1) * LIMIT * delay_s / 60.0


Demand = st.tuples(st.sampled_from([0.02, 0.05, 0.3, 1.7]), st.integers(1, BURST))


@given(st.lists(Demand, min_size=2, max_size=3))
@settings(max_examples=25, deadline=None)
def test_all_regions_together_keep_the_bound(demands: list[tuple[float, int]]) -> None:
    regions = play(demands, 150.0)
    assert most_in_a_minute(regions) <= bound(len(regions))


def test_regions_in_steady_use_together_pass_the_limit() -> None:
    """Two regions that want more than the limit get the limit in total, not half of it and not twice."""
    regions = play([(0.02, 100), (0.1, 100)], 240.0)
    passed = sum(tokens for region in regions for at_s, tokens in region.granted if at_s >= 60.0)
    assert 0.97 <= passed / (3 * LIMIT) <= 1.03
    assert min(sum(tokens for _, tokens in region.granted) for region in regions) > 0.2 * LIMIT


def test_single_busy_region_passes_the_whole_limit() -> None:
    regions = play([(0.02, 100), (100.0, 1)], 120.0)
    assert sum(tokens for at_s, tokens in regions[0].granted if at_s >= 60.0) >= 0.97 * LIMIT


def test_disconnected_regions_each_pass_at_most_the_limit() -> None:
    regions = play([(0.02, 100), (0.02, 100)], 200.0, cut_at_s=60.0)
    for region in regions:
        passed = sum(tokens for at_s, tokens in region.granted if at_s >= 100.0)
        assert 0.97 <= passed / (100 / 60 * LIMIT) <= 1.03
    assert all(earlier <= later for region in regions for earlier, later in pairwise(at for at, _ in region.granted))
