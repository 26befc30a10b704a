"""Rules with shorter windows: every duration is multiplied, and nothing else changes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from functions.telemetry.alerting import RULES_FILE, alerts, groups
from functions.telemetry.alerting.scaled import held_s, rules_text


def by_name(text: bytes) -> dict[str, dict[str, str]]:
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return {rule.get("alert") or rule["record"]: rule for rule in rules}


def test_windows_are_a_fifth() -> None:
    short = by_name(rules_text(0.2, scrape_every_s=1.0))
    assert "[24s]" in short["ColdStartStorm"]["expr"] and short["ColdStartStorm"]["for"] == "6s"
    assert "[12s]" in short["Overload"]["expr"]
    assert "offset 120s" in short["PrefixHitsLow"]["expr"]
    assert "> 60" in short["RegistryAway"]["expr"], "a threshold is not a window"


def test_a_window_keeps_enough_scrapes_for_a_rate() -> None:
    short = by_name(rules_text(0.2, scrape_every_s=5.0))
    assert "[20s]" in short["Overload"]["expr"]


def test_at_one_nothing_is_changed() -> None:
    assert rules_text() == RULES_FILE.read_bytes()


def test_only_times_differ() -> None:
    def without_times(text: str) -> str:
        return re.sub(r"\[\d+[smhd]\]|offset \d+[smhd]", "T", text)

    whole, short = by_name(RULES_FILE.read_bytes()), by_name(rules_text(0.2))
    assert whole.keys() == short.keys()
    for name, rule in whole.items():
        assert without_times(rule["expr"]) == without_times(short[name]["expr"])
        assert rule.get("labels") == short[name].get("labels")


@pytest.mark.parametrize("scale", [0.0, 0.19, 1.1])
def test_scale_too_short_for_a_rule_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"0\.2 to 1"):
        rules_text(scale)


def test_how_long_an_alert_holds() -> None:
    assert (held_s("SlowReplica"), held_s("SlowReplica", 0.2), held_s("NodeLoss", 0.2)) == (60.0, 12.0, 0.0)
    assert {alert.name for alert in alerts()} <= {rule.get("alert") for g in groups() for rule in g["rules"]}


def test_promtool_finds_nothing_wrong_with_them(tmp_path: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    (tmp_path / "rules.yaml").write_bytes(rules_text(0.2, 1.0))
    done = subprocess.run([tool, "check", "rules", str(tmp_path / "rules.yaml")], capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
