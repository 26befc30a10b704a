"""Plans and derived figures of a fan-out measurement."""

import argparse

import pytest

from loadtests.fan_out import scenarios
from loadtests.fan_out.measurement import Plan, Result
from loadtests.fan_out.report import table

MB = 1_000_000


def plans(*options: str) -> list[Plan]:
    parser = argparse.ArgumentParser()
    scenarios.add_arguments(parser)
    return scenarios._plans(parser.parse_args(options))


def test_faults_run_in_each_fleet_of_two_or_more() -> None:
    found = [(plan.name, plan.nodes) for plan in plans("--nodes", "1,8,64", "--faults", "kill,corrupt")]
    assert found[3:] == [("one killed", 8), ("one killed", 64), ("one corrupt", 8), ("one corrupt", 64)]


def test_a_volume_is_copied_first_and_then_read_over_one_link() -> None:
    """48 MB are copied at 1 MB/s, then read by 8 readers at 1 MB/s each, or by 64 readers that share 10 MB/s."""
    options = ("--size-mb", "48", "--node-mb-s", "1", "--store-mb-s", "10", "--nodes", "1", "--volume", "8,64")
    few, many = plans(*options)[1:]
    assert (few.least_s, many.least_s) == (pytest.approx(48 + 48), pytest.approx(48 + 64 * 4.8))


def test_rate_counts_only_nodes_that_must_finish() -> None:
    (plan,) = plans("--size-mb", "48", "--nodes", "8", "--faults", "kill")[1:]
    result = Result(
        plan, slowest_s=56.0, median_s=50.0, store_bytes=48 * MB, store_refused=0, from_peers_bytes=0, cpu_s=1
    )
    assert result.rate == pytest.approx(7 * 48 * MB / 56.0)
    head, row = table([result]).splitlines()
    assert row.split()[-3] == "6.0" and "rate MB/s" in head
