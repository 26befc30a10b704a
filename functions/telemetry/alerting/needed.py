"""What an alert is evaluated from: the rules it reads, and the series that these read of processes.

Worked example (test_what_an_alert_is_evaluated_from): `HeadOfLinePrefill` reads two recorded quantiles, and those read
`shoal_inter_token_seconds_bucket`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SELECTOR = re.compile(r"(?<![\w:\"=~.])(shoal_\w+|up)(?![\w:(])(\{[^}]*\})?")


def rules_for(alert: str, groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The alert's rule, after those whose series it reads; none where there is no such alert."""
    rules: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"]]
    found = [rule for rule in rules if rule.get("alert") == alert]
    for rule in found:  # grows as it goes
        found += [each for each in rules if each not in found and "record" in each and each["record"] in rule["expr"]]
    return found[::-1]


def selectors(rules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of series that processes have, as the rules write them; recorded ones are not among them."""
    return sorted({name + labels for rule in rules for name, labels in _SELECTOR.findall(rule["expr"])})
