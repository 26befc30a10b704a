"""Thresholds of load tests: names, comparison with measurements, and failure without any measurement."""

from pathlib import Path

import pytest
import yaml

from loadtests.locust import slo_file, verdicts
from loadtests.locust.__main__ import names
from loadtests.locust.slo import BadThreshold, Measured, judge, parse, parse_option, percentile, sum_of

CHAT = Measured(
    {"ttft": {100: 98, 2000: 2}, "gap": {10: 999, 5000: 1}}, {"ttft": 13_800.0}, answers=98, failures=1, refusals=5,
    given_up=1, tokens=2000, seconds=50.0,
)  # fmt: skip
OTHER = Measured({"ttft": {50: 100}}, {"ttft": 5000.0}, answers=100, seconds=40.0)


def kept(option: str, **entries: Measured) -> tuple[bool, float | None]:
    (verdict,) = judge([parse_option(option)], entries)
    return verdict.kept, verdict.seen


def test_percentiles_are_by_nearest_rank() -> None:
    times = {1: 100, 900: 1}
    assert (percentile(times, 99), percentile(times, 99.5), percentile(times, 0)) == (1, 900, 1)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("ttft_p50_ms=100", (True, 100)),
        ("ttft_p99_ms=1500", (False, 2000)),
        ("ttft_max_ms=2000", (True, 2000)),
        ("ttft_mean_ms=138", (True, 138)),
        ("gap_p99.9_ms=10", (True, 10)),
        ("gap_p99.95_ms=10", (False, 5000)),
        ("failures=0.01", (True, 0.01)),
        ("failures=0.0005", (False, 0.01)),
        ("given_up=0", (False, 0.01)),
        ("refusals=0.05", (True, 5 / 104)),  # 100 requests, sent 104 times
        ("answers_min=98", (True, 98)),
        ("answers_min=99", (False, 98)),
        ("tokens_per_s_min=40", (True, 40)),
        ("answers_per_s_min=2", (False, 1.96)),
    ],
)
def test_a_threshold_is_held_against_what_was_seen(option: str, expected: tuple[bool, float]) -> None:
    assert kept(option, chat=CHAT) == (expected[0], pytest.approx(expected[1]))


def test_unmeasured_threshold_is_broken() -> None:
    assert kept("embed_p99_ms=100", chat=CHAT) == (False, None)
    assert kept("failures=1") == (False, None)
    assert kept("after/ttft_p99_ms=9000", chat=CHAT) == (False, None)


def test_an_entry_is_judged_alone_and_all_together_otherwise() -> None:
    assert kept("chat/ttft_p99_ms=1000", chat=CHAT, other=OTHER) == (False, 2000)
    assert kept("other/ttft_p99_ms=1000", chat=CHAT, other=OTHER) == (True, 50)
    assert kept("ttft_p99_ms=1000", chat=CHAT, other=OTHER) == (True, 100)
    assert sum_of([CHAT, OTHER]).requests == 200


@pytest.mark.parametrize(
    "option",
    ["ttft_p99=1", "ttft_p99_ms", "ttft_p99_ms=fast", "ttft_p99_ms=-1", "failures=5", "errors=0", "gap_p99_ms=nan"],
)
def test_invalid_threshold_is_refused_by_name(option: str) -> None:
    with pytest.raises(BadThreshold, match=option.partition("=")[0]):
        parse_option(option)
    with pytest.raises(BadThreshold):
        parse("failures", True)


@pytest.mark.parametrize("file", [slo_file.SHIPPED, slo_file.STAGING], ids=lambda file: file.stem)
def test_a_shipped_file_has_each_profile_with_a_load_and_thresholds_that_an_empty_run_breaks(file: Path) -> None:
    assert set(yaml.safe_load(file.read_text())) == set(names())
    for profile in names():
        found = slo_file.read(file, profile)
        assert set(found.load) == {"users", "spawn_rate", "run_time"}
        assert not any(
            verdict.kept for verdict in judge(found.thresholds, {}) if verdict.threshold.quantity != "answers_min"
        )
        assert any(threshold.quantity == "answers_min" for threshold in found.thresholds)


def test_thresholds_of_staging_are_those_of_the_profile_and_never_tighter() -> None:
    """A threshold on a quantity that the profile does not measure would be broken in every run."""
    for profile in names():
        here, there = (
            {each.name: each for each in slo_file.read(file, profile).thresholds}
            for file in (slo_file.SHIPPED, slo_file.STAGING)
        )
        assert here.keys() == there.keys()
        assert not [each.name for each in there.values() if not each.is_least and each.limit < here[each.name].limit]


def test_load_comes_from_the_named_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("chat: {load: {users: 3}}")
    locust = ["locust", "-f", "loadtests/locust/profiles/chat.py", "--headless"]
    assert slo_file.load_for([*locust, "--slo-file", str(file)]) == {"users": 3}
    assert slo_file.load_for([*locust, "--slo-file", "none"]) == slo_file.load_for(locust)
    assert slo_file.load_for(locust)["users"] == slo_file.read(slo_file.SHIPPED, "chat").load["users"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("chat: {slow: {}}", "chat.slow"),
        ("chat: {slo: {ttft: 5}}", "chat.slo.ttft"),
        ("chat: {load: {people: 5}}", "chat.load.people"),
        ("[1]", "no mapping"),
        ("chat: 5", "no mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_names_it(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(text)
    with pytest.raises(BadThreshold, match=why):
        slo_file.read(file, "chat")


def test_the_table_names_what_is_broken() -> None:
    entries = {"chat": CHAT}
    table = verdicts.table(judge([parse_option("ttft_p99_ms=1500"), parse_option("failures=0.5")], entries), entries)
    assert "BROKEN  ttft_p99_ms" in table and "broken: ttft_p99_ms\n" in table
    assert "98 answers, 1 failures, 5 refusals" in table
    assert not verdicts.answered({"chat": Measured(failures=3)})
