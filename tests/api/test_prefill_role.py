"""Declaration of prefill pools: required settings, and the pools for which they compute prompts."""

import pytest

from functions.api.kinds import prefill_role
from functions.api.kinds.prefill_role import KV_BYTES_ANNOTATION, KV_RATE_ANNOTATION, ROLE_LABEL

LABELS = {ROLE_LABEL: "prefill"}
SAID = {KV_BYTES_ANNOTATION: "131072", KV_RATE_ANNOTATION: "100"}


def test_bytes_per_token_of_the_prologue() -> None:
    assert prefill_role.kv_bytes_per_token(SAID) == 2 * 32 * 8 * 128 * 2
    rate = prefill_role.kv_transfer_bytes_per_s(SAID)
    assert rate is not None
    assert round(8192 * 131_072 / rate * 1000) == 86


def test_a_whole_declaration_has_no_findings() -> None:
    assert list(prefill_role.findings(LABELS, SAID, is_beside=True)) == []
    assert prefill_role.role(LABELS) == "prefill" and prefill_role.role({}) == ""


@pytest.mark.parametrize(
    ("labels", "annotations", "is_beside", "where"),
    [
        ({ROLE_LABEL: "decode"}, {}, True, ROLE_LABEL),
        (LABELS, SAID, False, ROLE_LABEL),
        (LABELS, {KV_RATE_ANNOTATION: "100"}, True, KV_BYTES_ANNOTATION),
        (LABELS, SAID | {KV_RATE_ANNOTATION: "0"}, True, KV_RATE_ANNOTATION),
        (LABELS, SAID | {KV_BYTES_ANNOTATION: "9" * 30}, True, KV_BYTES_ANNOTATION),
        ({}, {KV_RATE_ANNOTATION: "fast"}, False, KV_RATE_ANNOTATION),
    ],
)
def test_what_a_prefill_pool_must_say(
    labels: dict[str, str], annotations: dict[str, str], is_beside: bool, where: str
) -> None:
    """The gateway needs these figures to decide which prompts to send to the prefill pool."""
    found = list(prefill_role.findings(labels, annotations, is_beside=is_beside))
    assert [finding.path[-1] for finding in found] == [where]
