"""A change that is not simulated is reported, and a simulated one is not."""

import msgspec
import pytest

from functions.api.snapshot import Snapshot
from functions.api.snapshot_entries import SECTIONS
from functions.controller.gitops.changes import compiled
from functions.simulator.plan.declarations import declarations_of
from functions.simulator.plan.unsimulated import SIMULATED, WHY, unsimulated
from tests.controller.configs import load, lora, policies, pool, tenant, tier

BASE = (tier(), pool(), pool("other"), tenant("acme", "ci"), policies())


def said(*documents: str, base: tuple[str, ...] = BASE) -> list[str]:
    was, is_ = load(*base), load(*documents)
    found = unsimulated(compiled(was, {}), compiled(is_, {}), declarations_of(was), declarations_of(is_))
    assert all(each.why for each in found)
    return [each.what for each in found]


def edited(old: str, new: str) -> tuple[str, ...]:
    assert any(old in document for document in BASE)
    return tuple(document.replace(old, new) for document in BASE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("boundedLoad: 2", "boundedLoad: 1"),
        ("session: {ttl: 60s}", "session: {ttl: 5m}"),
        ("ttftSlo: 500ms", "ttftSlo: 900ms"),
        ("maxQueuedTokens: 9000", "maxQueuedTokens: 90000"),
        ("fallback: [{when: saturated, from: base, to: other, tiers: [standard]}]", "fallback: []"),
        ("warm: 1", "warm: 0"),
        ("retry: {maxAttempts: 2", "retry: {hedgeAfter: 2s, maxAttempts: 2"),  # test_fleet_usage counts them
        ("--max-model-len=2048", "--max-model-len=4096"),
    ],
)
def test_simulated_change_is_not_reported(old: str, new: str) -> None:
    assert said(*edited(old, new)) == []


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("retry: {maxAttempts: 2", "unknownFields: refuse\n  retry: {maxAttempts: 2", "routing llamas: unknown_fields"),
        ("minRequests: 7", "minRequests: 70", "rollout default"),
        ("args: [--max-model-len=2048]", 'args: [--max-model-len=2048, "--block-size=32"]', "pool base: --block-size"),
        ("minReplicas: 1, model", "minReplicas: 1, timeout: 60, model", "pool base: spec.predictor.timeout"),
        (
            "modelFormat: {name: vLLM}, args",
            "modelFormat: {name: vLLM}, env: [{name: OMP_NUM_THREADS, value: '2'}], args",
            "pool base: env OMP_NUM_THREADS",
        ),
    ],
)
def test_unsimulated_change_is_reported(old: str, new: str, what: str) -> None:
    assert what in said(*edited(old, new))


def test_pools_of_one_model_and_their_rules_are_simulated() -> None:
    rule = "retry: {maxAttempts: 2, budget: 0.5}\n  placement: [{when: {classes: [batch]}, to: spot}]"
    ruled = edited("retry: {maxAttempts: 2, budget: 0.5}", rule)
    beside = pool("spot").replace("shoal.dev/pool: spot", "shoal.dev/pool: spot, shoal.dev/model: base")
    assert said(*ruled, beside) == []


def test_many_changes_of_a_kind_are_reported_once() -> None:
    before = [lora(f"acme/m{number}", "v1", "v2") for number in range(7)]
    after = [document.replace("stable: v1", "stable: v2") for document in before]
    assert said(*BASE, *after, base=(*BASE, *before)) == ["7 models, acme/m0 among them: channels"]


def test_limit_and_source_simulated_differently_are_reported() -> None:
    assert said(*edited("prefix: {source: sent}", "prefix: {source: events}")) == []
    assert said(*edited("prefix: {source: sent}", "prefix: {source: bloom}")) == ["routing llamas: prefix.source bloom"]
    limited = tier(spec="{limits: {requestsPerMinute: 10, gpuSecondsPerHour: 60}}")
    assert said(limited, *BASE[1:]) == ["quota standard: gpuSecondsPerHour"]


def test_removed_key_is_reported_and_a_silent_tenant_is_not() -> None:
    assert said(*(document.replace("{id: ci, hmacSha256", "{id: cd, hmacSha256") for document in BASE)) == [
        "2 keys, cd among them"
    ]
    assert said(*BASE, tenant("globex")) == []


def test_every_snapshot_section_is_simulated_or_has_a_reason() -> None:
    """A new field is reported until it is simulated; a removed one must not be named."""
    for section, (kind, _) in SECTIONS.items():
        names = {field.name for field in msgspec.structs.fields(kind)}
        assert SIMULATED.get(section, frozenset()) <= names
        assert names <= SIMULATED.get(section, frozenset()) or section in WHY or section == "quotas"


def test_no_change_reports_nothing() -> None:
    snapshot = compiled(load(*BASE), {})
    assert isinstance(snapshot, Snapshot)
    assert said(*BASE) == []
