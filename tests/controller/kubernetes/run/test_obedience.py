"""Findings on disobeyed policies: how long one must last, the effect of an unreachable bus, metric and log."""

import logging
from collections.abc import Sequence

import pytest

from functions.api.loader import Loaded, load_texts
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.controller.kubernetes.run.obedience import Obedience
from functions.controller.unobeyed.findings import Unobeyed
from functions.controller.unobeyed.observed import SETTLE_S, START_S, ObservedFleet
from functions.fleet.pool_board import Lacking, PoolReport
from tests.controller.unobeyed.test_declared import EVENTS, policy, service
from tests.controller.unobeyed.test_observed import WITHOUT_TOKENIZER, report

KEY = "routingpolicies/p"


class Watch:
    def __init__(self, *documents: str) -> None:
        self.loaded: Loaded = load_texts([("a.yaml", "---\n".join(documents).encode())])
        self.metrics = ControllerMetrics()
        self.changes = 0
        self.obedience = Obedience(self.metrics, self._changed)

    def _changed(self, new: Sequence[Unobeyed]) -> None:
        self.changes += 1

    def disobeyed(self, now_s: float, told: PoolReport | None, contested: dict[str, str] | None = None) -> list[str]:
        """Return the reasons why the policy is not obeyed."""
        self.obedience.update("main@1", self.loaded, ObservedFleet(told, contested or {}), now_s)
        return [each.reason for found in self.obedience.judgement.findings.values() for each in found]

    def counted(self, reason: str) -> float | None:
        labels = {"kind": "RoutingPolicy", "reason": reason}
        return self.metrics.registry.get_sample_value("shoal_controller_policies_not_obeyed", labels)


LACKING = report(WITHOUT_TOKENIZER)


def test_finding_counts_after_its_delay_and_clears_at_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(service("a"), EVENTS)
    with caplog.at_level(logging.INFO):
        assert not watch.disobeyed(0.0, LACKING)
        assert watch.counted("TokenizerMissing") is None
        for now_s in (SETTLE_S, SETTLE_S + 5, SETTLE_S + 10):
            assert watch.disobeyed(now_s, LACKING) == ["TokenizerMissing"]
        assert watch.counted("TokenizerMissing") == 1
        changes = watch.changes
        assert not watch.disobeyed(SETTLE_S + 15, report())
        assert watch.changes == changes + 1
        assert watch.counted("TokenizerMissing") is None
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, "once when it begins, once when it ends"
    assert lines[0].startswith(
        f"{KEY} is not obeyed (TokenizerMissing): spec.prefix.source: gateways have no tokenizer"
    )
    assert lines[1] == f"{KEY} is obeyed again"


def test_starting_pool_is_no_finding() -> None:
    spec = '{pools: ["*"], fallback: [{when: saturated, from: a, to: b}]}'
    watch = Watch(service("a"), service("b"), policy("RoutingPolicy", spec))
    for now_s in (0.0, SETTLE_S, START_S - 1.0):
        assert not watch.disobeyed(now_s, report())
    assert watch.disobeyed(START_S, report()) == ["PoolNotHeard"]


def test_starting_gateway_is_no_finding() -> None:
    watch = Watch(service("a"), EVENTS)
    for now_s in range(0, 120, 20):
        assert not watch.disobeyed(float(now_s), LACKING if now_s % 40 else report())


def test_findings_stay_while_the_bus_is_unreachable() -> None:
    watch = Watch(service("a"), EVENTS)
    watch.disobeyed(0.0, LACKING)
    for told in (None, report(connected=False), report(gateways=0), LACKING):
        assert watch.disobeyed(SETTLE_S, told) == ["TokenizerMissing"]


def test_new_leader_keeps_findings_until_gateways_report() -> None:
    watch = Watch(service("a"), EVENTS)
    watch.disobeyed(0.0, None)
    assert not watch.obedience.judgement.may_clear("TokenizerMissing")
    assert watch.obedience.judgement.may_clear("PrefixCachingOff"), "that the declarations show"
    watch.disobeyed(5.0, report())
    assert watch.obedience.judgement.may_clear("TokenizerMissing")
    watch.obedience.reset()
    assert not watch.obedience.judgement.may_clear("TokenizerMissing")


def test_declared_findings_count_at_once_beside_observed_ones() -> None:
    watch = Watch(service("a", "--no-enable-prefix-caching"), EVENTS)
    assert watch.disobeyed(0.0, LACKING) == ["PrefixCachingOff"]
    assert watch.disobeyed(SETTLE_S, LACKING) == ["PrefixCachingOff", "TokenizerMissing"]
    assert watch.disobeyed(SETTLE_S + 1, report(Lacking("tokenizer", "other", 1))) == ["PrefixCachingOff"]


STAGES = policy("RolloutPolicy", "{stages: [{percent: 5, duration: 10m}, {percent: 100}]}", "default")
AT_ONCE = policy("RolloutPolicy", "{stages: [{percent: 100}]}", "default")


def base(versions: str) -> str:
    return policy("Model", f"{{id: a, type: base, versions: [{versions}], channels: {{stable: v1}}}}", "a")


V1, V2 = "{name: v1, artifact: 'pvc://models/a/v1'}", "{name: v2, artifact: 'pvc://models/a/v2'}"


def test_stages_of_a_base_are_reported_as_not_obeyed() -> None:
    """On a cluster, a base's channel moves as a whole; the status must say that the policy's stages are ignored."""
    two = f"{V1}, {V2}"
    assert Watch(service("a"), base(two), STAGES).disobeyed(0.0, report()) == ["BaseStagesNotObeyed"]
    for documents in ((base(V1), STAGES), (base(two), AT_ONCE)):
        assert not Watch(service("a"), *documents).disobeyed(0.0, report())
