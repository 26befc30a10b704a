"""What a process says of itself, as a person reads it in `shoal status`."""

import pytest

from functions.controller.local.probes import said


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ('{"phase": "dead", "reason": "refused", "adapters": [], "not_ready": "dead: refused"}', "dead: refused"),
        ('{"phase": "hung", "condemned": "hung for 90 s: silent"}', "hung for 90 s: silent"),
        ('{"status": "not ready", "reason": "no snapshot yet"}', "no snapshot yet"),
        ('{"not_ready": "", "reason": "draining"}', "draining"),
        ('{"reason": {"a": 1}}', '{"reason": {"a": 1}}'),
        ("[1]", "[1]"),
        ("Service\n Unavailable", "Service Unavailable"),
        ("[" * 100_000, "[" * 300),
        ("", ""),
    ],
)
def test_the_reason_alone(answer: str, line: str) -> None:
    assert said(answer) == line
