"""`shoal usage`: tables from the registry's answers, and the accepted forms of times."""

from typing import Any

import pytest
from rich.console import Console

from functions.cli.refused import CommandRefused
from functions.cli.usage import moment_unix_s, notes, pools_table, usage_table

NOW_UNIX_S = 1_800_000_000.0
FIGURES: dict[str, Any] = {
    "requests": 1_200,
    "failed": 3,
    "left": 5,
    "prompt_tokens": 600_000,
    "cached_tokens": 200_000,
    "completion_tokens": 400_000,
    "kv_token_seconds": 9_000.4,
    "accelerator_seconds": 720.04,
    "cost": 2.0,
    "cost_per_million_tokens": 2.0,
}
ROW = FIGURES | {"model": "acme/bot", "day": 1_799_971_200}
TOTAL = FIGURES | {"requests": 2_400, "cost": 0.0512}
ANSWER: dict[str, Any] = {
    "since_unix_s": 1_799_971_200,
    "until_unix_s": 1_800_003_600,
    "last_told_unix_s": NOW_UNIX_S - 5,
    "has_more": False,
    "data": [ROW],
}


def printed(table: Any) -> list[list[str]]:
    console = Console(width=200, highlight=False, no_color=True)
    with console.capture() as captured:
        console.print(table)
    return [line.split() for line in captured.get().splitlines()]


def test_rows_by_what_was_asked_and_their_total_below() -> None:
    head, row, total = printed(usage_table([ROW], ["model", "day"], TOTAL))
    assert head[:4] == ["model", "day", "requests", "failed"]
    expected = ["acme/bot", "2027-01-15", "1,200", "3", "600,000", "200,000", "400,000", "9,000", "720.0", "2.00"]
    assert row[:10] == expected
    assert total[0] == "total" and "2,400" in total and "0.0512" in total


def test_what_is_not_asked_by_anything_is_one_row() -> None:
    head, row = printed(usage_table([FIGURES], [], FIGURES))
    assert head[0] == "requests" and row[0] == "1,200"


def test_lost_usage_is_shown_if_reported() -> None:
    lost = {"lost_accelerator_seconds": 12.34}
    head, row, _ = printed(usage_table([ROW | lost], ["model"], TOTAL | lost))
    assert head[-3:] == ["lost", "acc.", "s"] and row[-1] == "12.3"


def test_models_that_were_too_many_to_name_have_a_name() -> None:
    _, row, _ = printed(usage_table([ROW | {"model": ""}], ["model"], TOTAL))
    assert row[0] == "(others)"


def test_money_of_pools() -> None:
    used = {
        "pool": "base",
        "minutes_seen": 90,
        "paid_accelerator_seconds": 14_400.0,
        "used_accelerator_seconds": 3_600.0,
        "lost_accelerator_seconds": 360.0,
        "idle_accelerator_seconds": 10_440.0,
        "used_ratio": 0.25,
        "paid_cost": 10.0,
        "idle_cost": 7.25,
        "cost_per_million_tokens": 0.5,
        "break_even_per_million_tokens": 2.0,
    }
    none = dict.fromkeys(("used_ratio", "cost_per_million_tokens", "break_even_per_million_tokens"))
    _, row, idle = printed(pools_table([used, used | none | {"pool": "idle"}]))
    assert row == ["base", "4.00", "1.00", "0.10", "2.90", "25.0%", "10.00", "7.25", "0.5000", "2.00", "1.5"]
    assert (idle[5], idle[8], idle[9]) == ("–", "–", "–")


def test_a_reader_is_told_what_the_table_cannot_say() -> None:
    assert (
        len(notes(ANSWER, NOW_UNIX_S)) == 1 and "2027-01-15 00:00 to 2027-01-15 09:00" in notes(ANSWER, NOW_UNIX_S)[0]
    )
    late = notes(ANSWER | {"last_told_unix_s": NOW_UNIX_S - 3600, "has_more": True}, NOW_UNIX_S)
    assert "60 minutes" in late[1] and "first 1 rows" in late[2]


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("90m", NOW_UNIX_S - 5400),
        ("24h", NOW_UNIX_S - 86_400),
        ("7d", NOW_UNIX_S - 604_800),
        ("2027-01-15", 1_799_971_200.0),
        ("2027-01-15T08:00:00Z", NOW_UNIX_S),
        ("2027-01-15T10:00:00+02:00", NOW_UNIX_S),
    ],
)
def test_times_as_people_write_them(text: str, unix_s: float) -> None:
    assert moment_unix_s(text, NOW_UNIX_S) == unix_s


@pytest.mark.parametrize("text", ["yesterday", "0d", "7w", "", "2027-13-01"])
def test_what_is_no_time_is_said(text: str) -> None:
    with pytest.raises(CommandRefused, match="is not a time"):
        moment_unix_s(text, NOW_UNIX_S)
