"""Display of a rollout on a terminal, in a log and in a list."""

import io

import pytest
from rich.console import Console, RenderableType

from functions.cli.refused import CommandRefused
from functions.cli.rollout_tables import drawn, line, picture_of, rollout_table
from functions.decisions.rollout.evidence import TrialEvidence
from tests.cli.rollouts import NOW_UNIX_S, answer, group, rollout


def shown(what: RenderableType, width: int = 80) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(what)
    return output.getvalue()


SLOW = TrialEvidence(group(60, 0, 900.0), group(3000, 3, 400.0), NOW_UNIX_S - 1)


def test_both_groups_stand_side_by_side() -> None:
    text = shown(drawn(picture_of(answer(rollout(), SLOW), NOW_UNIX_S)))
    lines = {words[0]: words[1:] for words in (each.split() for each in text.splitlines()) if words}
    assert lines["requests"] == ["3,000", "60"]
    assert lines["failed"] == ["0.1", "%", "0.0", "%"]
    p99 = next(each for each in text.splitlines() if each.startswith("whole answer p99"))
    control, candidate, factor = (float(word) for word in p99.replace("ms", "").replace("x", "").split()[3:])
    assert control == pytest.approx(400, rel=0.02)
    assert candidate == pytest.approx(900, rel=0.02)
    assert factor == pytest.approx(2.25, rel=0.03)


def test_conditions_are_shown_with_their_figures_and_how_near_they_are() -> None:
    text = shown(drawn(picture_of(answer(rollout(), SLOW), NOW_UNIX_S)), width=160)
    rates, latencies = (next(each for each in text.splitlines() if each.startswith(name)) for name in ("error", "p99_"))
    assert "0.00% against 0.10%, limit 2.00%" in rates
    assert "good" in rates
    assert "looks bad" in latencies or "halts" in latencies


def test_stage_without_gateway_reports_says_so() -> None:
    assert "no gateway has reported on this stage yet" in shown(drawn(picture_of(answer(rollout()), NOW_UNIX_S)))
    silent = TrialEvidence(group(60, 0, 400.0), group(60, 0, 400.0), NOW_UNIX_S - 60)
    assert "no gateway has reported for 60 s" in shown(drawn(picture_of(answer(rollout(), silent), NOW_UNIX_S)))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "changes",
    [
        {"state": "loading", "loaded": False},
        {"state": "paused", "reason": "paused by operator"},
        {"state": "completed", "stage": 2, "reason": "every stage passed"},
        {"state": "rolled_back", "reason": "stage 1 of 3 (1%): error_rate > 2%"},
        {"state": "superseded", "reason": "superseded by ro-22222222"},
        {"attempt": 3},
    ],
)
def test_every_state_is_drawn_within_the_terminal(changes: dict[str, object], width: int) -> None:
    it = rollout(**changes)
    text = shown(drawn(picture_of(answer(it, SLOW), NOW_UNIX_S)), width)
    assert it.state.replace("_", " ") in text
    assert max(len(each) for each in text.splitlines()) <= width
    assert it.is_active or it.reason in text


def test_a_line_has_the_share_both_groups_and_why() -> None:
    words = line(
        picture_of(answer(rollout(), TrialEvidence(group(10, 0, 400.0), group(900, 9, 400.0), NOW_UNIX_S)), NOW_UNIX_S)
    )
    assert words.startswith("running 1 % (1 of 3) | control v1: 900 requests, 1.0 % failed, first token p99 40")
    assert "candidate v2: 10 requests, first token p99 40" in words
    assert words.endswith("10 of 50 requests of v2")


def test_hostile_names_are_only_text() -> None:
    it = rollout(reason="[red]not red[/] [link=https://x]x[/link]", state="rolled_back")
    text = shown(drawn(picture_of(answer(it), NOW_UNIX_S)), 200) + line(picture_of(answer(it), NOW_UNIX_S))
    assert text.count("[red]not red[/]") == 2


def test_what_a_newer_registry_tells_besides_is_passed_over() -> None:
    told = answer(rollout()) | {"tomorrow": [1, 2, 3]}
    assert picture_of(told, NOW_UNIX_S).rollout == rollout()


@pytest.mark.parametrize(
    "wrong", [{"state": "exploded"}, {"stage": -1}, {"evidence": {"candidate": {"requests": -1}, "control": {}}}]
)
def test_an_answer_that_is_no_rollout_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CommandRefused, match="cannot read"):
        picture_of(answer(rollout()) | wrong, NOW_UNIX_S)


def test_the_list_has_a_line_for_each() -> None:
    rows = [answer(rollout(), SLOW), answer(rollout(id="ro-22222222", state="completed", stage=2))]
    head, *lines = shown(rollout_table(rows), 120).splitlines()
    assert head.split() == ["rollout", "model", "from", "→", "to", "state", "share", "stage", "for"]
    assert lines[0].split()[:7] == ["ro-abcdefgh", "acme/bot:stable", "v1", "→", "v2", "running", "1"]
    assert "100 %" in lines[1]
