"""Sizing of an overlay: cores and bytes needed, from measured costs and the overlay's own numbers.

    streams       = gateways at most x open requests a gateway is to have (Knative's target)
    requests/s    = streams x tokens/s of a stream / tokens of an answer
    gateway       chunks, requests, heartbeats, other feeds on one core (the event loop); tokenizing on another
    bus           heartbeats and cache events to every gateway, lease rounds of every gateway: on its one thread
    installations = streams wanted / streams of one: work that grows with gateways x tenants exceeds one bus

Costs are from docs/measurements/data/costs.csv, at the upper end of their range; LOAD
describes one stream. `test_sizing` checks the production overlay and the table against these formulas.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.gateway import memory as gateway_memory
from functions.gateway.settings import GatewaySettings
from functions.registry.server import maximum_memory as registry_memory
from functions.registry.settings import RegistrySettings
from functions.telemetry.memory import total_bytes
from tests.manifests.rendering import Rendering

MIB = 1024**2
_UNITS = {"": 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_MAX_NUM_SEQS = re.compile(r"--max-num-seqs=(\d+)")


@dataclass(frozen=True, slots=True)
class Load:
    """Assumed shape of one stream and of the load; replace it with an installation's own numbers."""

    tokens_per_s: float = 40.0
    answer_tokens: int = 400
    prompt_kib: float = 8.0
    turns_learnt_per_request: float = 1.0  # only the last turn of the prompt is new
    adapters_per_replica: int = 128
    snapshot_bytes: int = SNAPSHOT_MAX_BYTES
    active_tenants: int = 128  # at each gateway, in the same two seconds


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU in us, memory in bytes."""

    chunk_us: float = 25.5  # 4,000/s; 18.9 at 40,000/s
    request_1k_us: float = 160.0
    request_64k_us: float = 345.0
    idle_ms_per_s: float = 9.0  # feeds, leases and sweep of a gateway with 32 replicas
    heartbeat_us: float = 66.0  # CPU at a gateway for one from a replica with 128 adapters, 6.8 kB
    heartbeat_bytes: int = 6_800
    cache_news_per_s: float = 5.0  # maximum for one replica
    cache_news_us: float = 11.0
    cache_news_bytes: int = 400
    homes_told_per_s: float = 5.0  # by each gateway: conversations whose home is not the assumed one
    turn_learnt_ms: float = 4.0
    gateway_base_bytes: int = 92 * MIB
    stream_bytes: int = 8_704
    known_blocks_bytes_per_pool: int = 100 * 10**6  # the bound: 1,000,000 distinct blocks
    learnt_bytes: int = 50 * 10**6 + 16 * MIB + 32 * 10**6  # chains, prompts to learn, tokenised pieces
    tokenizer_bytes: int = 130 * MIB  # measured 50 MiB for 49,152 tokens; 2.6 times as many here, so an estimate
    bus_publish_us: float = 7.5
    bus_delivery_us: float = 0.67  # plus, for each kB:
    bus_delivery_us_per_kb: float = 0.5
    lease_call_ms: float = 2.0  # one call for 128 accounts
    lease_accounts_per_call: int = 128
    lease_rounds_per_s: float = 4.0
    poll_ms: float = 1.0  # registry CPU for a follower's long poll that ends (estimate)
    poll_every_s: float = 25.0
    follower_bytes: int = 40_000
    registry_base_bytes: int = 108 * MIB
    bus_buffer_bytes: int = 8 * MIB  # output buffer of a slow subscriber: the soft limit of valkey.conf


LOAD, COSTS = Load(), Costs()


@dataclass(frozen=True, slots=True)
class Sizing:
    """Sizing of one overlay: `given` values are from its YAML, needed ones are computed."""

    gateways: int
    target: int
    replicas: int  # maximum, over all pools
    slots: int  # streams that these replicas can run at once
    pools: int  # generating pools, for which a gateway has a tokenizer and knows the caches
    gateway: tuple[float, float, float]  # given: cores, bytes requested, bytes at most
    bus: tuple[float, float, float]
    registry: tuple[float, float, float]
    bus_maxmemory: float
    gateway_settings: GatewaySettings
    registry_settings: RegistrySettings
    load: Load = LOAD
    costs: Costs = COSTS

    @property
    def streams(self) -> int:
        return self.gateways * self.target

    @property
    def requests_per_s(self) -> float:
        return self.streams * self.load.tokens_per_s / self.load.answer_tokens

    @property
    def gateway_loop_cores(self) -> float:
        """Cores of the event loop that are used, at most 1."""
        costs, load = self.costs, self.load
        requests = self.requests_per_s / self.gateways
        request_us = costs.request_1k_us + (costs.request_64k_us - costs.request_1k_us) * (load.prompt_kib - 1) / 63
        chunks_us = self.target * load.tokens_per_s * costs.chunk_us
        feeds_us = self.replicas * (costs.heartbeat_us + costs.cache_news_per_s * costs.cache_news_us)
        feeds_us += self.gateways * costs.homes_told_per_s * costs.cache_news_us  # same size and cost as a cache event
        return (chunks_us + requests * request_us + feeds_us) / 1e6 + costs.idle_ms_per_s / 1e3

    @property
    def gateway_learner_cores(self) -> float:
        turns = self.requests_per_s / self.gateways * self.load.turns_learnt_per_request
        return turns * self.costs.turn_learnt_ms / 1e3

    @property
    def gateway_usual_bytes(self) -> float:
        streams = self.target * (self.costs.stream_bytes + self.load.prompt_kib * 1024)
        return self.costs.gateway_base_bytes + streams + self.pools * self.costs.tokenizer_bytes

    @property
    def gateway_most_bytes(self) -> float:
        """Bytes of a gateway that has reached every bound at once."""
        return total_bytes(gateway_memory.maximum_parts(self.gateway_settings, self.pools, self.load.snapshot_bytes))

    @property
    def registry_most_bytes(self) -> float:
        return total_bytes(registry_memory(self.registry_settings, self.load.snapshot_bytes))

    @property
    def bus_cores(self) -> float:
        return self._bus_feeds_cores(self.gateways) + self._bus_leases_cores(self.gateways, self.load.active_tenants)

    @property
    def bus_bytes(self) -> float:
        return self.bus_maxmemory + self.gateways * self.costs.bus_buffer_bytes

    @property
    def most_active_tenants(self) -> int:
        """Return the active tenants at each gateway at which the bus uses 0.7 of its core."""
        free = 0.7 - self._bus_feeds_cores(self.gateways)
        return int(self.costs.lease_accounts_per_call * free / self._bus_leases_cores(self.gateways, 1))

    @property
    def registry_cores(self) -> float:
        return (self.gateways + self.replicas) / self.costs.poll_every_s * self.costs.poll_ms / 1e3

    @property
    def registry_bytes(self) -> float:
        return self.costs.registry_base_bytes + (self.gateways + self.replicas) * self.costs.follower_bytes

    def installations_for(self, streams: int) -> int:
        return math.ceil(streams / self.streams)

    def one_bus_cores_for(self, streams: int) -> float:
        """Return the bus cores for `streams` in a single installation, with gateways and tenants in proportion."""
        gateways = math.ceil(streams / self.target)
        return self._bus_leases_cores(gateways, self.load.active_tenants)

    def _bus_feeds_cores(self, gateways: int) -> float:
        costs = self.costs

        def told_us(size_bytes: int) -> float:
            return costs.bus_publish_us + gateways * (
                costs.bus_delivery_us + costs.bus_delivery_us_per_kb * size_bytes / 1000
            )

        of_replica_us = told_us(costs.heartbeat_bytes) + costs.cache_news_per_s * told_us(costs.cache_news_bytes)
        of_gateway_us = costs.homes_told_per_s * told_us(costs.cache_news_bytes)
        return (self.replicas * of_replica_us + gateways * of_gateway_us) / 1e6

    def _bus_leases_cores(self, gateways: int, tenants: int) -> float:
        calls = math.ceil(tenants / self.costs.lease_accounts_per_call)
        return gateways * self.costs.lease_rounds_per_s * calls * self.costs.lease_call_ms / 1e3


def sizing_of(rendering: Rendering) -> Sizing:
    gateway = rendering.one("Service", "gateway", group="serving.knative.dev")["spec"]["template"]
    scaling = {
        name.rpartition("/")[2]: value
        for name, value in gateway["metadata"]["annotations"].items()
        if name.startswith("autoscaling.knative.dev/")
    }
    registry = rendering.one("Service", "registry", group="serving.knative.dev")["spec"]["template"]
    bus = rendering.one("StatefulSet", "bus")["spec"]["template"]
    pools = [
        each for each in rendering.of("InferenceService") if "shoal.dev/pool" in each["metadata"].get("labels", {})
    ]
    generating = [
        each
        for each in pools
        if each["metadata"]["labels"].get("shoal.dev/task", "generate") == "generate"
        and each["metadata"]["labels"].get("shoal.dev/role") != "prefill"  # a prefill pool streams no answers
    ]
    return Sizing(
        gateways=int(scaling["max-scale"]),
        target=int(scaling["target"]),
        replicas=sum(each["spec"]["predictor"]["maxReplicas"] for each in pools),
        slots=sum(each["spec"]["predictor"]["maxReplicas"] * _sequences(each) for each in generating),
        pools=len(generating),
        gateway=_resources(gateway["spec"]),
        bus=_resources(bus["spec"]),
        registry=_resources(registry["spec"]),
        bus_maxmemory=_maxmemory_bytes(rendering),
        gateway_settings=GatewaySettings(**_settings(gateway["spec"], "SHOAL_GATEWAY_")),
        registry_settings=RegistrySettings(**_settings(registry["spec"], "SHOAL_REGISTRY_")),
    )


def table(of: Sizing) -> list[tuple[str, str, str]]:
    """Return the rows of docs/measurements/data/sizing.csv."""
    return [
        ("open streams", f"{of.gateways} gateways × {of.target}", f"{of.streams:,}"),
        ("requests/s", "streams × 40 tokens/s / 400 tokens", f"{of.requests_per_s:,.0f}"),
        ("streams that the pools can run", f"{of.replicas} replicas at most, by `--max-num-seqs`", f"{of.slots:,}"),
        _row("a gateway's event loop, cores", of.gateway_loop_cores, 1.0),
        _row("a gateway with its tokenizing, cores", of.gateway_loop_cores + of.gateway_learner_cores, of.gateway[0]),
        _row("a gateway's memory, usual, MiB", of.gateway_usual_bytes / MIB, of.gateway[1] / MIB),
        _row("a gateway's memory, every bound reached, MiB", of.gateway_most_bytes / MIB, of.gateway[2] / MIB),
        _row("the bus, cores (it has one thread)", of.bus_cores, of.bus[0]),
        _row("the bus's memory, MiB", of.bus_bytes / MIB, of.bus[2] / MIB),
        _row("the registry, cores", of.registry_cores, of.registry[0]),
        _row("the registry's memory beside its snapshots, MiB", of.registry_bytes / MIB, of.registry[2] / MIB),
        _row("the registry's memory, every bound reached, MiB", of.registry_most_bytes / MIB, of.registry[2] / MIB),
        ("tenants in use at once at every gateway", "until the bus needs 0.7 cores", f"{of.most_active_tenants}"),
        ("installations for 1,000,000 streams", f"1,000,000 / {of.streams:,}", f"{of.installations_for(10**6)}"),
        ("one bus for them all instead, cores", "leases alone", f"{of.one_bus_cores_for(10**6):.0f}"),
    ]


def _row(what: str, needed: float, given: float) -> tuple[str, str, str]:
    figure = "{:.2f}" if given < 16 else "{:,.0f}"
    return what, f"{figure.format(needed)} needed", f"{figure.format(given)} given"


def _settings(pod: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the container's settings with this prefix; a value from elsewhere is "x"."""
    found = {each["name"]: each.get("value", "x") for each in pod["containers"][0]["env"]}
    return {name.removeprefix(prefix).lower(): value for name, value in found.items() if name.startswith(prefix)}


def _sequences(service: dict[str, Any]) -> int:
    (found,) = [
        match
        for argument in service["spec"]["predictor"]["model"]["args"]
        if (match := _MAX_NUM_SEQS.fullmatch(argument))
    ]
    return int(found[1])


def _resources(pod: dict[str, Any]) -> tuple[float, float, float]:
    resources = pod["containers"][0]["resources"]
    requests, limits = resources["requests"], resources["limits"]
    return quantity(requests["cpu"]), quantity(requests["memory"]), quantity(limits["memory"])


def quantity(text: str) -> float:
    """Return a Kubernetes quantity as cores or bytes."""
    match = re.fullmatch(r"([0-9.]+)(m|Ki|Mi|Gi)?", str(text))
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2] or ""]


def _maxmemory_bytes(rendering: Rendering) -> float:
    (config,) = [each for each in rendering.of("ConfigMap") if each["metadata"]["name"].startswith("bus-config")]
    match = re.search(r"^maxmemory (\d+)mb$", config["data"]["valkey.conf"], re.MULTILINE)
    assert match is not None
    return int(match[1]) * MIB
