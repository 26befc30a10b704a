"""Parts of `shoal drill`: the undo journal, consent, judging answers, alerts by the second, the catalogue."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from functions.cli.drill import picture
from functions.cli.drill.command import DRILLS, DrillRequest, find_drill, show_kept
from functions.cli.drill.journal import Continue, JournalUnreadable, RevokeKey, StartController, Undoing, UndoJournal
from functions.cli.drill.load import _Answer, judged
from functions.cli.drill.report import newest, store_report
from functions.cli.drill.runner import environment_of, refusal
from functions.cli.drill.timeline import AlertChange
from functions.cli.drill.watch import changes_of, parsed, value_of
from functions.cli.refused import CommandRefused
from functions.telemetry.alerting import alerts

KEY = RevokeKey("acme", "drill-1")
STOPPED = Continue("bus", 4711, 12.5)


def test_what_was_begun_is_known_to_the_next_drill_and_undone_last_first(tmp_path: Path) -> None:
    first = UndoJournal(tmp_path)
    first.add(KEY)
    first.add(STOPPED)
    undone: list[Undoing] = []
    later = UndoJournal(tmp_path)  # the first was killed
    assert later.roll_back(undone.append) == []
    assert undone == [STOPPED, KEY]
    assert UndoJournal(tmp_path).entries == ()


def test_an_undoing_that_fails_is_kept_and_keeps_no_other_from_being_done(tmp_path: Path) -> None:
    journal = UndoJournal(tmp_path)
    for undoing in (KEY, STOPPED, StartController()):
        journal.add(undoing)

    def fails_once(undoing: Undoing) -> None:
        if undoing == STOPPED:
            raise OSError("no")

    wrong = journal.roll_back(fails_once)
    assert wrong == ["Continue: no"] and UndoJournal(tmp_path).entries == (STOPPED,)


def test_a_fault_is_taken_back_and_what_was_before_stays(tmp_path: Path) -> None:
    journal = UndoJournal(tmp_path)
    journal.add(KEY)
    mark = journal.mark
    journal.add(STOPPED)
    journal.roll_back(lambda undoing: None, mark)
    assert UndoJournal(tmp_path).entries == (KEY,)


def test_a_journal_that_cannot_be_read_is_told_and_not_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "drill-to-take-back.json").write_text('[{"type": "nothing"}]')
    with pytest.raises(JournalUnreadable, match=r"drill-to-take-back\.json"):
        UndoJournal(tmp_path)


def test_production_wants_each_drill_by_its_name() -> None:
    assert environment_of("shoal_local_drill-1_abc") == "local"
    assert refusal("local", "bus-away", []) == ""
    for environment in ("live", "production", ""):
        assert "--i-consent-on-production bus-away" in refusal(environment, "bus-away", ["overload"])
        assert refusal(environment, "bus-away", ["overload", "bus-away"]) == ""


PROMPT = "a1b2c3 amber basalt"


def answer(**given: object) -> _Answer:
    made = _Answer(status=200, model="base@v1", text=PROMPT, done=True)
    for name, value in given.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        ({}, "whole"),
        ({"done": False}, "failed"),
        ({"error": "upstream_lost", "done": False, "text": "a1b2c3"}, "broken_off"),
        ({"text": "a1b2c3 amber cedar"}, "mixed"),
        ({"model": "other@v1"}, "mixed"),
        ({"model": "other@v1", "degraded": True, "text": "what it says"}, "whole"),
        ({"status": 503, "code": "overloaded", "text": "", "done": False}, "refused"),
        ({"status": 503, "code": "", "text": "", "done": False}, "failed"),
        ({"status": 500, "code": "internal", "text": "", "done": False}, "failed"),
        ({"broke": "ReadError", "done": False, "text": "a1b2c3"}, "failed"),
    ],
)
def test_how_an_answer_is_judged(given: dict[str, object], ending: str) -> None:
    assert judged(answer(**given), "base", PROMPT, echoes=True)[0] == ending


def test_an_adapters_answer_has_its_mark() -> None:
    own = answer(model="acme/bot@v1", text=f"[acme/bot@sha256:12#3] {PROMPT}")
    assert judged(own, "acme/bot", PROMPT, echoes=True)[0] == "whole"
    others = answer(model="acme/bot@v1", text=f"[globex/bot@sha256:12#3] {PROMPT}")
    assert judged(others, "acme/bot", PROMPT, echoes=True)[0] == "mixed"


def test_of_a_real_engine_only_the_model_is_known() -> None:
    assert judged(answer(text="Paris."), "base", PROMPT, echoes=False)[0] == "whole"
    assert judged(answer(model="other@v1"), "base", PROMPT, echoes=False)[0] == "mixed"


def test_a_cascades_larger_pool_may_answer_and_still_only_with_the_requests_own_text() -> None:
    large = answer(model="large@v1")
    assert judged(large, "base", PROMPT, echoes=True, another_may_answer=True)[0] == "whole"
    large.text = "a1b2c3 opal"
    assert judged(large, "base", PROMPT, echoes=True, another_may_answer=True)[0] == "mixed"


def test_alerts_by_the_second() -> None:
    labels = {"alertname": "BusAway"}
    series = [
        {"metric": labels | {"alertstate": "pending"}, "values": [(3.0, 1.0), (4.0, 1.0)]},
        {"metric": labels | {"alertstate": "firing"}, "values": [(5.0, 1.0), (6.0, 1.0)]},
    ]
    assert changes_of(series, 9.0) == [
        AlertChange(3.0, "BusAway", "pending"),
        AlertChange(5.0, "BusAway", "firing"),
        AlertChange(7.0, "BusAway", "inactive"),
    ]


def test_a_gauge_is_folded_over_the_series_that_have_its_labels() -> None:
    samples = parsed('a{state="dead",pool="x"} 1\na{state="dead",pool="y"} 2\na{state="ready",pool="x"} 7\n')
    crash = find_drill("replica-crash").effect
    assert value_of({("shoal_pool_replicas", labels): value for (_, labels), value in samples.items()}, crash) == 3.0
    assert value_of({}, crash) is None


def test_each_drill_names_an_alert_of_its_failure_mode_and_the_modes_have_runbooks() -> None:
    modes = {alert.name: alert.failure_mode for alert in alerts()}
    assert {drill.alert: drill.name for drill in DRILLS}.items() <= modes.items()
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)
    with pytest.raises(CommandRefused, match="there is no drill 'flood'"):
        find_drill("flood")


def test_a_runbook_tells_how_its_failure_is_played() -> None:
    runbooks = Path(__file__).parents[3] / "docs" / "how-to" / "runbooks"
    for drill in DRILLS:
        assert f"`shoal drill {drill.name}`" in (runbooks / f"{drill.name}.md").read_text(), drill.name


MADE = {
    "drill": "bus-away",
    "ended_unix_s": 1_800_000_000.0,
    "engine": "sim",
    "replicas": 2,
    "alert": "BusAway",
    "alert_window_scale": 0.2,
    "marks": {"injected_s": 1.0, "taken_back_s": 3.0, "ended_s": 5.0},
    "alerts": [[2.0, "BusAway", "firing"], [4.0, "BusAway", "inactive"], [4.0, "Other", "firing"]],
    "effect": {"metric": "shoal_bus_up", "words": "it shows", "series": [[0.5, 1.0], [2.0, None]]},
    "seconds": [{"at_s": 0.0, "offered": 1, "whole": 1, "refused": 0, "failed": 0, "ttft_p99_s": 0.2}],
    "passed": True,
    "alert_checked": True,
    "alert_fired_after_s": 1.0,
    "alert_cleared_after_s": 1.0,
    "requests": 1,
    "wrongly_failed": 0,
    "recovered_after_s": 0.0,
}


def test_a_report_is_drawn_as_a_picture_and_as_a_page(tmp_path: Path) -> None:
    made = MADE
    for name in ("drill.svg", "drill.html"):
        picture.draw(tmp_path / name, json.loads(json.dumps(made)))
        text = (tmp_path / name).read_text()
        assert text.count("taken back") >= 3 and "BusAway" in text
    with pytest.raises(ValueError, match=r"\.svg"):
        picture.check(tmp_path / "drill.gif")


def test_the_newest_report_of_a_drill_is_found_and_not_that_of_another(tmp_path: Path) -> None:
    assert newest(tmp_path, "bus-away") is None
    store_report(tmp_path, MADE | {"requests": 7, "ended_unix_s": 1_800_000_060.0})
    store_report(tmp_path, MADE)
    store_report(tmp_path, MADE | {"drill": "omni-bus-away", "ended_unix_s": 1_900_000_000.0})
    found = newest(tmp_path, "bus-away")
    assert found is not None and found["requests"] == 7
    (tmp_path / "20990101T000000Z-bus-away.json").write_text("{")
    with pytest.raises(CommandRefused, match="20990101T000000Z-bus-away"):
        newest(tmp_path, "bus-away")


def test_a_kept_report_is_drawn_without_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "state"))
    store_report(tmp_path / "state" / "drills", MADE)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    asked = DrillRequest(
        names=(), all_of_them=True, tenant=None, scale=0.2, consents=(), plot=pictures, as_json=False
    )  # fmt: skip
    show_kept(asked)
    assert [file.name for file in pictures.iterdir()] == ["bus-away.svg"]
    show_kept(replace(asked, names=("bus-away",), all_of_them=False, plot=tmp_path / "one.html"))
    assert "taken back" in (tmp_path / "one.html").read_text()
    with pytest.raises(CommandRefused, match="overload: no report is stored"):
        show_kept(replace(asked, names=("bus-away", "overload"), all_of_them=False))
    with pytest.raises(CommandRefused, match=r"several drills need a folder"):
        show_kept(replace(asked, plot=tmp_path / "all.svg"))
