"""Series recorded from drills: metrics of gateways, registry and agents during an injected failure, by the second.

Each file of `tests/telemetry/recorded` is made from a drill's report, and promtool's test file from that. It has the
alert's rules with the windows of the drill's fleet. The alert must be silent before the fault, fire when it fired in
the drill, and be silent again when it cleared there.

    .venv/bin/python -m tests.telemetry.recorded_series .shoal/drills          # the newest report of each drill

A report that does not say that its alert fired and cleared is left out, by name; so is one over MAX_BYTES.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from functions.cli.drill.command import DRILLS
from functions.cli.drill.recording import rules_for
from functions.cli.drill.report import newest
from functions.telemetry.alerting.scaled import rules_text

FOLDER = Path(__file__).parent / "recorded"
MAX_BYTES = 40_000
SCRAPE_EVERY_S = 1  # for a fleet whose windows are a fifth
LATE_S = 4  # Prometheus evaluates and scrapes at other parts of a second than promtool


def recording_of(made: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a drill's report that a test needs."""
    return {
        "drill": made["drill"],
        "alert": made["alert"],
        "windows": made["alert_window_scale"],
        "injected_s": made["marks"]["injected_s"],
        "fired_s": made["marks"]["injected_s"] + made["alert_fired_after_s"],
        "cleared_s": made["marks"]["taken_back_s"] + made["alert_cleared_after_s"],
        "begins_s": made["recorded"]["begins_s"],
        "series": made["recorded"]["series"],
    }


def written(folder: Path, recording: dict[str, Any]) -> str:
    """Write promtool's test file and its rules; return the test file's path."""
    alert, zero_s = recording["alert"], recording["begins_s"]
    fired_for_s = recording["cleared_s"] - recording["fired_s"]
    groups = yaml.safe_load(rules_text(recording["windows"], SCRAPE_EVERY_S))["groups"]
    rules = folder / f"{recording['drill']}.rules.yaml"
    rules.write_text(json.dumps({"groups": [{"name": alert, "rules": rules_for(alert, groups)}]}))
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'

    def at(second: float, fires: bool) -> dict[str, Any]:
        found = [{"labels": "{}", "value": 1}] if fires else []
        return {"expr": f"{firing} > bool 0", "eval_time": f"{round(second - zero_s)}s", "exp_samples": found}

    test = {
        "name": recording["drill"],
        "interval": "1s",
        "input_series": [{"series": name, "values": values} for name, values in recording["series"].items()],
        "promql_expr_test": [
            at(recording["injected_s"] - 1, fires=False),
            at(recording["fired_s"] + min(LATE_S, fired_for_s / 2), fires=True),
            at(recording["cleared_s"] + LATE_S, fires=False),
        ],
    }
    tests = folder / f"{recording['drill']}.tests.yaml"
    tests.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1s", "tests": [test]}))
    return str(tests)


def _write_recordings(reports: Path) -> None:
    for drill in DRILLS:
        made = newest(reports, drill.name)
        if made is None or made["alert_fired_after_s"] is None or made["alert_cleared_after_s"] is None:
            why = "no report" if made is None else "its alert did not fire and clear"
            sys.stderr.write(f"{drill.name}: left out: {why}\n")
            continue
        text = json.dumps(recording_of(made), indent=0, sort_keys=True) + "\n"
        if len(text) > MAX_BYTES:
            sys.stderr.write(f"{drill.name}: left out: {len(text)} bytes, over {MAX_BYTES}\n")
            continue
        (FOLDER / f"{drill.name}.json").write_text(text)
        sys.stderr.write(f"{drill.name}: {len(text)} bytes, {len(made['recorded']['series'])} series\n")


if __name__ == "__main__":
    _write_recordings(Path(sys.argv[1]))
