"""Policies without effect, as the running fleet shows.

    TokenizerMissing     `prefix.source: events` or `bloom`, and gateways have no tokenizer for a pool
    EventsMissing        the same source, and replicas of a pool receive no KV events from their engines
    ToolSecretMissing    a tool with a secret that gateways do not have
    PoolNotHeard         a classifier or fallback to a pool that should have replicas, and none sends heartbeats
    ReplicasContested    another writer owns the number of replicas

Each finding needs a report: a gateway that lists what it lacks, or an agent without events although its engine
computes. Silence is no evidence, so a starting fleet or an unavailable bus causes no finding.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from functions.api.consistency.everything import Everything, sorted_out
from functions.api.declared import Accepted, Declared, policy_minima
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import Tenant
from functions.controller.autoscaling.signals import replicas_of
from functions.controller.unobeyed.declared import governed_pools, uses_replica_prefixes
from functions.controller.unobeyed.findings import Unobeyed, unobeyed
from functions.fleet.pool_board import Lacking, PoolReport

SETTLE_S = 30.0  # time for a starting gateway, or a replica that has just answered its first request
START_S = 900.0  # time for a new pool, whose nodes start and whose weights load
LASTING_S = MappingProxyType(  # minimum duration before a condition becomes a finding
    {
        "TokenizerMissing": SETTLE_S,
        "EventsMissing": SETTLE_S,
        "ToolSecretMissing": SETTLE_S,
        "PoolNotHeard": START_S,
    }
)
OBSERVED = frozenset({*LASTING_S, "ReplicasContested"})


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """State of the running fleet, as far as it is reported."""

    report: PoolReport | None = None
    contested: Mapping[str, str] = field(
        default_factory=dict
    )  # by AutoscalingPolicy: the other owner of the number, and what to do

    @property
    def is_known(self) -> bool:
        """True if there is a report, the registry is connected to the bus and gateways report. Otherwise a former
        finding is not known to be resolved either."""
        return self.report is not None and self.report.bus_connected and self.report.needs.gateways > 0


def observed_findings(objects: Iterable[Declared[AnyObject]], word: ObservedFleet) -> Iterator[Unobeyed]:
    everything = sorted_out(each for each in objects if not isinstance(each, Accepted))
    for policy in everything.autoscaling:
        if contested := word.contested.get(policy.value.metadata.name):
            yield unobeyed(policy, ("spec", "replicas"), "ReplicasContested", contested)
    if word.report is not None and word.report.bus_connected:
        lacking = {(each.what, each.subject): each for each in word.report.needs.lacking}
        yield from _prefixes(everything, word.report, lacking)
        yield from _silent_pools(everything, word.report)
        for tenant in everything.tenants:
            yield from _secrets(tenant, lacking, word.report)


def _prefixes(
    everything: Everything, report: PoolReport, lacking: Mapping[tuple[str, str], Lacking]
) -> Iterator[Unobeyed]:
    pools = everything.pools()
    for policy, governed in governed_pools(everything):
        if uses_replica_prefixes(policy.value):
            generating = [pool for pool in sorted(governed) if pools[pool].value.task == "generate"]
            yield from _without_tokenizer(policy, generating, report, lacking)
            yield from _without_events(policy, generating, report)


def _without_tokenizer(
    policy: Declared[RoutingPolicy],
    pools: Sequence[str],
    report: PoolReport,
    lacking: Mapping[tuple[str, str], Lacking],
) -> Iterator[Unobeyed]:
    for pool in pools:
        need = lacking.get(("tokenizer", pool))
        if need is not None:
            message = (
                f"{_gateways_text(need, report)} no tokenizer for {pool} ({need.why}), so prompts are matched only "
                "with what was sent; give gateways that tokenizer (shoal base tokenizer), or set source: sent"
            )
            yield unobeyed(policy, ("spec", "prefix", "source"), "TokenizerMissing", message)


def _without_events(policy: Declared[RoutingPolicy], pools: Sequence[str], report: PoolReport) -> Iterator[Unobeyed]:
    for pool in pools:
        ready = [each for each in replicas_of(report, pool) if each.phase == "ready"]
        lacking = sum(each.prefix_events is False for each in ready)
        if lacking:
            none_do = lacking == len(ready)
            who = f"no replica of {pool} receives" if none_do else f"some replicas of {pool} do not receive"
            message = (
                f"{who} KV events, so gateways do not know what their engines cache; start the engine with "
                "--kv-events-config and its agent with SHOAL_REPLICA_KV_EVENTS_ENDPOINT, or set source: sent"
            )
            yield unobeyed(policy, ("spec", "prefix", "source"), "EventsMissing", message)


def _silent_pools(everything: Everything, report: PoolReport) -> Iterator[Unobeyed]:
    """Yield a finding for each pool without heartbeats to which a routing policy sends requests, except pools that may
    be empty: these get replicas when requests arrive."""
    minima = policy_minima(everything.autoscaling)
    wanted = {
        pool for pool, service in everything.pools().items() if service.value.bounds_under(minima.get(pool))[0] > 0
    }
    for policy in everything.routing:
        for path, pool in _targets(policy.value):
            if pool in wanted and not replicas_of(report, pool):
                message = (
                    f"no replica of {pool} sends heartbeats, so it answers nothing; see why its pods do not start "
                    "(kubectl -n shoal-models describe), or name another pool"
                )
                yield unobeyed(policy, path, "PoolNotHeard", message)


def _targets(policy: RoutingPolicy) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the pools to which the policy sends requests for other pools, with their paths."""
    for index, step in enumerate(policy.spec.fallback):
        yield ("spec", "fallback", index, "to"), step.to
    for index, hop in enumerate(policy.spec.cascade):
        yield ("spec", "cascade", index, "to"), hop.to
    classifier = policy.spec.classifier
    if classifier is not None:
        yield ("spec", "classifier", "otherwise"), classifier.otherwise
        for index, rule in enumerate(classifier.rules):
            yield ("spec", "classifier", "rules", index, "to"), rule.to


def _secrets(
    tenant: Declared[Tenant], lacking: Mapping[tuple[str, str], Lacking], report: PoolReport
) -> Iterator[Unobeyed]:
    name = tenant.value.metadata.name
    for index, tool in enumerate(tenant.value.spec.tools):
        need = lacking.get(("tool_secret", f"{name}/{tool.secret}")) if tool.secret is not None else None
        if need is not None:
            message = (
                f"{_gateways_text(need, report)} no secret {tool.secret} of {name} ({need.why}), so every call of "
                f"{tool.name} fails; add it to the gateways' tool secrets, or remove it from the tool"
            )
            yield unobeyed(tenant, ("spec", "tools", index, "secret"), "ToolSecretMissing", message)


def _gateways_text(need: Lacking, report: PoolReport) -> str:
    """Return the message's beginning: all gateways, or some. It has no count: gateways come and go, and each new text
    would be written."""
    return "gateways have" if need.gateways >= report.needs.gateways else "some gateways have"
