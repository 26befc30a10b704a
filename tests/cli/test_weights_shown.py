"""Loaded weights of replicas in `shoal status`."""

from typing import Any

from functions.cli.status_tables import mixed_lines, weights_name

V1, V2 = "sha256:" + "ab" * 32, "sha256:" + "cd" * 32
NAMES = {V1: "v1"}


def replica(pool: str, weights: str, phase: str = "ready") -> dict[str, Any]:
    return {"pool": pool, "phase": phase, "weights_digest": weights}


def test_a_version_has_its_name_and_what_has_none_its_digest() -> None:
    names = [weights_name(each, NAMES) for each in (replica("a", V1), replica("a", V2), replica("a", ""), {})]
    assert names == ["v1", "sha256:cdcdcdcdcdcd", "not known", "not known"]


def test_a_pool_that_mixes_weights_is_named() -> None:
    """During a rolling restart, replicas of a pool may have different weights; the status must show it."""
    replicas = [replica("a", V1), replica("a", V1), replica("a", V2), replica("b", V2), replica("b", V2)]
    assert mixed_lines(replicas, NAMES) == ["[yellow]![/] a mixes weights: sha256:cdcdcdcdcdcd on 1, v1 on 2"]


def test_replicas_not_serving_or_without_report_do_not_count_as_mixed() -> None:
    assert mixed_lines([replica("a", V1), replica("a", V2, "draining"), replica("a", "")], NAMES) == []
