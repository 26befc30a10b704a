"""The Kubernetes component's rules and dashboards, and the page of alerts, from the files that `shoal up` uses."""

import json

import yaml

from docs.generate.markdown import code, page, table
from docs.generate.source import ROOT
from functions.telemetry.alerting import RULES_FILE, RUNBOOKS, alerts, groups
from functions.telemetry.alerting.dashboards import files

RUNBOOKS_FILE = ROOT / "functions" / "registry" / "console" / "page" / "runbooks.json"
COMPONENT = ROOT / "manifests" / "components" / "observability"
_ABOUT = (
    "This page is for operators. It lists every alert that shoal ships, with its severity, its runbook and the time "
    "for which its condition must hold. On one machine `shoal up` loads the rules into Prometheus; on Kubernetes the "
    "component `manifests/components/observability` does. Severity `page` needs action now, `ticket` this week. The "
    "failure mode is a label of the alert, a row of the dashboard `shoal: failure modes` and the name of the "
    "[runbook](../how-to/runbooks/README.md)."
)
_WRITTEN = "# Written by `make docs` from functions/telemetry/alerting. Change that, not this file.\n"


def alerts_files() -> dict[str, str]:
    """Return the page of alerts."""
    rows = [
        (
            code(each.name),
            each.severity,
            f"[{each.failure_mode}](../how-to/runbooks/{each.failure_mode}.md)",
            _for(each.name),
        )
        for each in alerts()
    ]
    return {"alerts.md": page("Alerts", _ABOUT, table(("alert", "severity", "failure mode", "after"), rows))}


def component_files() -> dict[str, str]:
    """Return the component's generated files by their path below its folder."""
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "shoal", "namespace": "shoal", "labels": {"app.kubernetes.io/part-of": "shoal"}},
        "spec": yaml.safe_load(RULES_FILE.read_text()),
    }
    text = _WRITTEN + yaml.safe_dump(rule, sort_keys=False, width=4096, allow_unicode=True)
    return {"rules.yaml": text, **{f"dashboards/{name}": text for name, text in files().items()}}


def runbooks_json() -> str:
    """Return the runbooks by failure mode as JSON, for the console of an installed package, which has no docs/."""
    folder = ROOT / RUNBOOKS
    found = {path.stem: path.read_text() for path in sorted(folder.glob("*.md")) if path.name != "README.md"}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _for(alert: str) -> str:
    rules = [rule for group in groups() for rule in group["rules"] if rule.get("alert") == alert]
    return str(rules[0].get("for", "at once"))
