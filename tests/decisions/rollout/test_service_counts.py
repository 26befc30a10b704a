"""Replica counts of a pool's services while a base changes its version: the table and the invariants."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.decisions.rollout.replica_shares import VersionShares
from functions.decisions.rollout.service_counts import (
    OWN,
    ServiceReplicas,
    is_settled,
    next_counts,
    service_targets,
)

SECOND = "base-v2-1a2b3c"


def two(own: str, second: str, own_version: str = "v1") -> dict[str, ServiceReplicas]:
    """Return two services, each given as asked/ready."""
    (asked, ready), (others, others_ready) = (map(int, text.split("/")) for text in (own, second))
    return {
        OWN: ServiceReplicas(own_version, asked, ready),
        SECOND: ServiceReplicas("v2", others, others_ready),
    }


def moving(count: int) -> VersionShares:
    return VersionShares("v1", {"v2": count} if count else {}, is_moving=True)


AT_V1, AT_V2 = VersionShares("v1", {}), VersionShares("v2", {})

TABLE = [
    # shares, total, surge, own, second -> own, second
    (moving(1), 4, 1, "4/4", "0/0", 4, 1),
    (moving(1), 4, 1, "4/4", "1/0", 4, 1),
    (moving(2), 4, 1, "4/4", "1/1", 3, 2),
    (moving(4), 4, 1, "3/3", "2/1", 3, 2),  # four must be ready and are: none ends before the next one is ready
    (moving(4), 4, 1, "3/3", "2/2", 2, 3),
    (moving(4), 4, 1, "1/1", "4/4", 1, 4),
    (AT_V1, 4, 1, "3/3", "2/2", 4, 0),  # rolled back
    (AT_V2, 4, 1, "1/1", "4/4", 0, 4),  # completed
    (moving(1), 4, 0, "4/4", "0/0", 3, 1),  # without a surge one is drained first
    (moving(3), 4, 0, "3/3", "1/0", 3, 1),
    (moving(3), 4, 0, "3/3", "1/1", 2, 2),
    (moving(0), 1, 0, "1/1", "0/0", 1, 0),  # one replica, and no place for a second version
    (moving(1), 1, 1, "1/1", "0/0", 1, 1),
    (moving(0), 4, 1, "4/4", "0/0", 4, 0),  # paused before it was loaded: no further replica is needed
    (moving(1), 6, 1, "4/4", "1/1", 6, 1),  # the autoscaler wants two more
    (moving(1), 2, 1, "4/4", "1/1", 2, 1),  # and four fewer: ready ones may end at once
    (moving(1), 2, 1, "4/1", "1/1", 2, 1),
    (moving(0), 0, 1, "0/0", "0/0", 0, 0),  # a pool that sleeps gets no replica for a rollout
]


@pytest.mark.parametrize(("shares", "total", "surge", "own", "second", "to_own", "to_second"), TABLE)
def test_table(
    shares: VersionShares, total: int, surge: int, own: str, second: str, to_own: int, to_second: int
) -> None:
    assert next_counts(total, surge, shares, two(own, second)) == {OWN: to_own, SECOND: to_second}


def walk(total: int, surge: int, shares: VersionShares, own: str, second: str, own_version: str) -> list[str]:
    """Return the steps until nothing changes, if all requested replicas become ready before each next step."""
    services, seen = two(own, second, own_version), list[str]()
    while True:
        counts = next_counts(total, surge, shares, services)
        if all(counts[name] == each.asked for name, each in services.items()):
            return seen
        seen.append(f"{counts[OWN]} {counts[SECOND]}")
        services = {name: replace(each, asked=counts[name], ready=counts[name]) for name, each in services.items()}


def test_worked_example_of_four_replicas() -> None:
    assert walk(4, 1, moving(1), "4/4", "0/0", "v1") == ["4 1"]
    assert walk(4, 1, moving(2), "4/4", "1/1", "v1") == ["3 2"]
    assert walk(4, 1, AT_V1, "3/3", "2/2", "v1") == ["4 0"]
    assert walk(4, 1, AT_V2, "1/1", "4/4", "v1") == ["0 4"]
    back = walk(4, 1, AT_V2, "0/0", "4/4", "v2")
    assert back == ["1 4", "2 3", "3 2", "4 1", "4 0"], "what goes and what comes are one step"


def test_without_a_surge_replicas_move_back_one_by_one() -> None:
    assert walk(2, 0, AT_V2, "0/0", "2/2", "v2") == ["1 1", "2 0"]


def test_old_version_stays_until_the_new_one_is_ready() -> None:
    """A registry that lost its rows points the channel at v2 at once, while only v1 is there."""
    assert next_counts(4, 1, AT_V2, two("4/4", "0/0")) == {OWN: 4, SECOND: 1}
    assert next_counts(4, 1, AT_V2, two("4/4", "1/0")) == {OWN: 4, SECOND: 1}


def test_old_replicas_end_as_new_ones_start_if_any_version_may_answer() -> None:
    """A Model with one version: its requests name no weights."""
    assert next_counts(4, 1, AT_V2, two("4/4", "1/1"), by_version=False) == {OWN: 3, SECOND: 2}


def test_replicas_move_back_only_while_no_rollout_runs() -> None:
    services = {**two("1/1", "3/3", "v2"), "base-v3-4d5e6f": ServiceReplicas("v3")}
    shares = VersionShares("v2", {"v3": 1}, is_moving=True)
    assert service_targets(4, 1, shares, services) == {OWN: 1, SECOND: 3, "base-v3-4d5e6f": 1}


def test_two_new_versions_share_the_surge() -> None:
    shares = VersionShares("v1", {"v2": 2, "v3": 2}, is_moving=True)
    services = {**two("4/4", "0/0"), "base-v3-4d5e6f": ServiceReplicas("v3")}
    assert next_counts(4, 1, shares, services) == {OWN: 4, SECOND: 1, "base-v3-4d5e6f": 0}


def test_a_service_with_other_weights_is_left_alone() -> None:
    services = {OWN: ServiceReplicas(None, 4, 4), SECOND: ServiceReplicas("v2")}
    assert next_counts(4, 1, AT_V2, services) == {OWN: 4, SECOND: 1}


@pytest.mark.parametrize(
    ("shares", "own", "second", "own_version", "settled"),
    [
        (AT_V1, "4/4", "0/0", "v1", True),
        (AT_V1, "4/2", "0/0", "v1", True),  # missing pods are no change
        (AT_V1, "3/3", "1/1", "v1", False),
        (AT_V2, "0/0", "4/4", "v1", False),  # the own service has the old weights
        (AT_V2, "4/4", "0/0", "v2", False),  # the second one is still there
        (moving(1), "4/4", "0/0", "v1", False),
    ],
)
def test_is_settled(shares: VersionShares, own: str, second: str, own_version: str, settled: bool) -> None:
    assert is_settled(4, shares, two(own, second, own_version)) is settled


# -- laws --------------------------------------------------------------------------------------------------------------

counts = st.integers(0, 12)


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, int, VersionShares, dict[str, ServiceReplicas], bool]:
    total, surge = draw(st.integers(0, 10)), draw(st.integers(0, 1))
    main = draw(st.sampled_from(["v1", "v2", "v3"]))
    most = total + (surge if total else 0) - 1
    others: dict[str, int] = {}
    for version in sorted({"v1", "v2", "v3"} - {main}):
        left = most - sum(others.values())
        if left > 0 and (count := draw(st.integers(0, left))):
            others[version] = count
    shares = VersionShares(main, others, is_moving=draw(st.booleans()))
    services = {OWN: draw(one(st.sampled_from(["v1", "v2", "v3"])))}
    for number, version in enumerate(sorted({main, *others} | draw(st.sets(st.sampled_from(["v1", "v2", "v3"]))))):
        services[f"second-{number}"] = draw(one(st.just(version)))
    return total, surge, shares, services, draw(st.booleans())


def one(versions: st.SearchStrategy[str]) -> st.SearchStrategy[ServiceReplicas]:
    return st.builds(ServiceReplicas, versions, counts, counts)


@given(situations())
def test_requested_replicas_never_exceed_total_and_surge(
    situation: tuple[int, int, VersionShares, dict[str, ServiceReplicas], bool],
) -> None:
    total, surge, shares, services, by_version = situation
    after = next_counts(total, surge, shares, services, by_version=by_version)
    before = sum(each.asked for each in services.values())
    assert sum(after.values()) <= max(before, total + surge)
    assert all(count >= 0 for count in after.values())


@given(situations())
def test_no_step_leaves_fewer_ready_replicas_than_wanted(
    situation: tuple[int, int, VersionShares, dict[str, ServiceReplicas], bool],
) -> None:
    """Versions that serve no requests do not count."""
    total, surge, shares, services, by_version = situation
    after = next_counts(total, surge, shares, services, by_version=by_version)
    main_is_ready = any(each.version == shares.main and each.ready_of_asked for each in services.values())
    bearing = {shares.main, *shares.others} if by_version and main_is_ready else {"v1", "v2", "v3"}
    counted = [name for name, each in services.items() if each.version in bearing]
    before = sum(services[name].ready_of_asked for name in counted)
    left = sum(min(services[name].ready, after[name]) for name in counted)
    assert left >= min(before, total - (0 if surge else 1))


@given(situations())
def test_every_plan_finishes(
    situation: tuple[int, int, VersionShares, dict[str, ServiceReplicas], bool],
) -> None:
    """All requested replicas become ready."""
    total, surge, shares, services, by_version = situation
    for _ in range(80):
        after = next_counts(total, surge, shares, services, by_version=by_version)
        if all(after[name] == each.asked == each.ready for name, each in services.items()):
            break
        services = {name: replace(each, asked=after[name], ready=after[name]) for name, each in services.items()}
    assert after == service_targets(total, surge, shares, services)
    by_version_now = dict.fromkeys((shares.main, *shares.others), 0)
    for name, each in services.items():
        if each.version in by_version_now:
            by_version_now[each.version] += after[name]
    assert {version: by_version_now[version] for version in shares.others} == dict(shares.others)
    assert by_version_now[shares.main] <= total
    assert sum(after.values()) <= total + surge
