"""Unobeyed policies that gateways, agents and other field managers reveal; a missing report is no finding."""

import msgspec

from functions.api.loader import load_texts
from functions.controller.unobeyed.findings import Unobeyed
from functions.controller.unobeyed.observed import ObservedFleet, observed_findings
from functions.fleet.pool_board import GatewayNeeds, Lacking, PoolReport
from tests.controller.configs import tier
from tests.controller.scaling.builders import replica
from tests.controller.unobeyed.test_declared import EVENTS, policy, service

TOOL = "{name: weather, url: https://tools.example.com/weather, secret: weather-token}"
TENANT = policy("Tenant", f"{{tier: standard, tools: [{TOOL}]}}", "acme") + "---\n" + tier()
SCALING = policy("AutoscalingPolicy", "{pool: a, replicas: {min: 1, max: 2}}")


def report(
    *lacking: Lacking, gateways: int = 2, events: tuple[bool | None, ...] = (), connected: bool = True
) -> PoolReport:
    replicas = tuple(replica(number, pool="a", prefix_events=each) for number, each in enumerate(events))  # type: ignore[arg-type]
    return PoolReport(connected, {}, replicas, GatewayNeeds(gateways, lacking))


def found(word: ObservedFleet, *documents: str) -> list[Unobeyed]:
    loaded = load_texts([("a.yaml", "---\n".join(documents).encode())])
    return list(observed_findings(loaded.objects, word))


def said(word: ObservedFleet, *documents: str) -> list[tuple[str, str, str]]:
    return [(each.key, each.reason, each.problem.key_path) for each in found(word, *documents)]


WITHOUT_TOKENIZER = Lacking("tokenizer", "a", 2, "SHOAL_GATEWAY_TOKENIZERS_DIR is not set")


def test_gateways_without_a_tokenizer_are_a_finding() -> None:
    word = ObservedFleet(report(WITHOUT_TOKENIZER))
    assert said(word, service("a"), EVENTS) == [("routingpolicies/p", "TokenizerMissing", "spec.prefix.source")]
    (finding,) = found(word, service("a"), EVENTS)
    assert finding.problem.message.startswith("gateways have no tokenizer for a (SHOAL_GATEWAY_TOKENIZERS_DIR is not")
    some = ObservedFleet(report(WITHOUT_TOKENIZER, gateways=3))
    assert found(some, service("a"), EVENTS)[0].problem.message.startswith("some gateways have no tokenizer")
    assert not said(word, service("a", task="embed"), EVENTS), "nothing is to be tokenised"
    assert not said(word, service("a"), policy("RoutingPolicy", '{pools: ["*"]}')), "a default is no promise"
    assert not said(word, service("b"), EVENTS), "another pool's"


def test_engines_without_events_are_a_finding() -> None:
    reason = [("routingpolicies/p", "EventsMissing", "spec.prefix.source")]
    assert said(ObservedFleet(report(events=(False, False))), service("a"), EVENTS) == reason
    (some,) = found(ObservedFleet(report(events=(False, True))), service("a"), EVENTS)
    assert some.problem.message.startswith("some replicas of a do not receive KV events")
    assert not said(ObservedFleet(report(events=(True, None))), service("a"), EVENTS), "None: nothing was computed yet"


def test_missing_secret_of_a_tool_is_a_finding() -> None:
    word = ObservedFleet(report(Lacking("tool_secret", "acme/weather-token", 2, "there is no file")))
    assert said(word, TENANT) == [("tenants/acme", "ToolSecretMissing", "spec.tools[0].secret")]
    (finding,) = found(word, TENANT)
    assert "every call of weather fails" in finding.problem.message
    assert not said(ObservedFleet(report(Lacking("tool_secret", "globex/weather-token", 2))), TENANT), (
        "another tenant's"
    )


def test_contested_replica_number_is_a_finding() -> None:
    word = ObservedFleet(None, {"p": "kubectl holds .spec.predictor.minReplicas"})
    (finding,) = found(word, service("a"), SCALING)
    assert (finding.key, finding.reason) == ("autoscalingpolicies/p", "ReplicasContested")


TARGETS = "fallback: [{when: saturated, from: a, to: b}], classifier: {model: auto, otherwise: b}"


def test_missing_target_pool_is_a_finding() -> None:
    routing = policy("RoutingPolicy", f'{{pools: ["*"], {TARGETS}}}')
    paths = ["spec.fallback[0].to", "spec.classifier.otherwise"]
    word = ObservedFleet(report(events=(True,)))
    assert said(word, service("a"), service("b"), routing) == [
        ("routingpolicies/p", "PoolNotHeard", path) for path in paths
    ]
    there = msgspec.structs.replace(report(), replicas=(replica(pool="b", phase="starting"),))
    assert not said(ObservedFleet(there), service("a"), service("b"), routing)
    empty = policy("AutoscalingPolicy", "{pool: b, replicas: {min: 0, max: 2}}")
    may_be_empty = service("b").replace("minReplicas: 1, ", "")
    assert not said(word, service("a"), may_be_empty, routing, empty), "its replicas come with requests"


def test_missing_reports_are_no_finding() -> None:
    away = report(WITHOUT_TOKENIZER, events=(False,), connected=False)
    assert not found(ObservedFleet(away), service("a"), EVENTS)
    assert not found(ObservedFleet(None), service("a"), EVENTS)
    assert not ObservedFleet(away).is_known
    assert not ObservedFleet(report(gateways=0)).is_known, "an older registry, or no gateway"
    assert ObservedFleet(report()).is_known


def test_unknown_fields_of_a_newer_gateway_are_ignored() -> None:
    assert not found(ObservedFleet(report(Lacking("moonlight", "a", 2))), service("a"), EVENTS, TENANT)
