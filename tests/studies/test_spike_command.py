"""`python -m studies spike`: wrong options are refused before anything runs, and figures make a table."""

from pathlib import Path

import pytest
from rich.console import Console

from functions.cli.refused import CommandRefused
from studies.spike import command as simulate_spike
from studies.spike.arms import ARMS, TITLES, ArmName
from studies.spike.figures import SpikeFigures, over_seeds
from studies.spike.spike import SpikeSetting, run


def spike(tmp_path: Path, *, arms: tuple[str, ...] = (), plot: str = "p.svg") -> None:
    simulate_spike.spike(
        arms=arms, seeds=1, factor=5.0, start_s=300.0, lasts_s=300.0, plot=tmp_path / plot, as_json=True
    )  # fmt: skip


def test_unknown_arms_and_plot_types_are_refused_first(tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="one of ladder, room, hpa, kpa"):
        spike(tmp_path, arms=("prayer",))
    with pytest.raises(CommandRefused, match="ends in"):
        spike(tmp_path, plot="p.txt")


def test_table_shows_which_arms_recovered() -> None:
    recovered_s: dict[ArmName, float | None] = {"ladder": 0.0, "hpa": None}
    found = [
        over_seeds(arm, [SpikeFigures(237.0, 0.85, 0.15, 0.16, 0.26, after_s, 1.5)])
        for arm, after_s in recovered_s.items()
    ]
    console = Console(width=160)
    with console.capture() as captured:
        console.print(simulate_spike.table(found))
    text = captured.get()
    assert "85.0%" in text and "26.0%" in text and "0 s" in text and " not " in text
    assert all(TITLES[arm] in text for arm in recovered_s)


@pytest.mark.soak
def test_plot_has_a_column_for_each_arm(tmp_path: Path) -> None:
    brief = SpikeSetting(replicas=1, warm=1, small_replicas=1, at_s=4.0, rise_s=1.0, lasts_s=3.0, after_s=1.0)
    simulate_spike.draw(tmp_path / "p.svg", brief, [run(brief, arm, 0) for arm in ARMS[:2]])
    words = (tmp_path / "p.svg").read_text()
    for word in (TITLES[ARMS[0]], TITLES[ARMS[1]], "interactive p99", "batch refused", "promised"):
        assert word in words, word
