"""One run: N nodes fetch one artifact concurrently; their times, and the bytes that the store sent."""

import resource
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.ids import Digest
from functions.replica.settings import NodeFetchSettings
from loadtests.fan_out.nodes import NodeProcess, running_nodes, wait_for
from loadtests.fan_out.proxy import StoreProxy
from loadtests.fan_out.store import CREDENTIALS
from loadtests.fan_out.volume import read_by

STORE_FAULT_S = 10.0
TOKEN = "fan-out"  # only for this measurement, on loopback


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a run. Rates are in bytes a second."""

    name: str
    nodes: int
    size_bytes: int
    chunk_bytes: int
    node_rate: float
    store_rate: float
    swarm: bool = True
    kill_one: bool = False
    corrupt_one: bool = False
    break_store: bool = False
    zones: int = 1
    volume: bool = False  # one node copies to a folder, which all nodes then read over a link of volume_rate
    volume_rate: float = 0.0

    @property
    def received(self) -> int:
        """Number of nodes that must have the whole artifact at the end."""
        return self.nodes - self.kill_one

    @property
    def least_s(self) -> float:
        """Lower bound of the duration by the caps: of one node's link, of the store, and of all links together."""
        if self.volume:
            copied_s = self.size_bytes / min(self.node_rate, self.store_rate)
            return copied_s + max(self.size_bytes / self.node_rate, self.nodes * self.size_bytes / self.volume_rate)
        copies = self.nodes if not self.swarm else 1
        supply = self.store_rate + (self.nodes * self.node_rate if self.swarm else 0)
        return max(
            self.size_bytes / self.node_rate,
            copies * self.size_bytes / self.store_rate,
            self.nodes * self.size_bytes / supply,
        )


@dataclass(frozen=True, slots=True)
class Result:
    plan: Plan
    slowest_s: float
    median_s: float
    store_bytes: int
    store_refused: int
    from_peers_bytes: int
    cpu_s: float
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Bytes a second received by all nodes together, until the last one has the whole artifact."""
        return self.plan.received * self.plan.size_bytes / self.slowest_s

    @property
    def store_ratio(self) -> float:
        return self.store_bytes / self.plan.size_bytes


def measure(plan: Plan, digest: Digest, folder: Path, proxy: StoreProxy, tracker_url: str) -> Result:
    """Run the plan in `folder`, which is removed at the end."""
    given_before, refused_before = proxy.counts()
    cpu_before_s = _children_cpu_s()
    fetchers = 1 if plan.volume else plan.nodes
    settings = [_settings(plan, index, folder, proxy.port, tracker_url) for index in range(fetchers)]
    corrupt = frozenset({plan.nodes - 1}) if plan.corrupt_one else frozenset[int]()
    timeout_s = 120 + 6 * plan.least_s
    try:
        with running_nodes(folder, settings, digest, corrupt) as nodes:
            judged = _disturb(plan, nodes, proxy)
            reports = wait_for(judged, timeout_s)
            seconds = sorted(report.seconds for report in reports)
            for node in judged:
                _check(node, digest)
            if plan.volume:
                rate = min(plan.node_rate, plan.volume_rate / plan.nodes)
                seconds = sorted(seconds[0] + s for s in read_by(plan.nodes, nodes[0], digest, rate, timeout_s))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    given, refused = proxy.counts()
    failures: dict[str, int] = {}
    for report in reports:
        for name, count in report.failures.items():
            failures[name] = failures.get(name, 0) + count
    return Result(
        plan,
        seconds[-1],
        seconds[len(seconds) // 2],
        given - given_before,
        refused - refused_before,
        sum(report.from_peers_bytes for report in reports),
        round(_children_cpu_s() - cpu_before_s, 1),
        failures,
    )


def _disturb(plan: Plan, nodes: list[NodeProcess], proxy: StoreProxy) -> list[NodeProcess]:
    """Inject the plan's faults and return the nodes that must still finish."""
    if plan.break_store:
        time.sleep(min(2.0, plan.least_s / 8))
        proxy.break_for(STORE_FAULT_S)
    if plan.kill_one:
        time.sleep(plan.least_s / 3)
        nodes[0].kill()
        return nodes[1:]
    return nodes


def _check(node: NodeProcess, digest: Digest) -> None:
    path = node.settings.cache_dir / "sha256" / digest.removeprefix("sha256:")
    if not (path / "shoal-manifest.json").is_file():
        raise RuntimeError(f"{node.name} reported success, but {path.name} is not in its cache")


def _settings(plan: Plan, index: int, folder: Path, store_port: int, tracker_url: str) -> NodeFetchSettings:
    folder.mkdir(parents=True, exist_ok=True)
    token, credentials = folder / "token", folder / "s3.json"
    token.write_text(TOKEN)
    credentials.write_text(
        f'{{"access_key_id": "{CREDENTIALS.access_key_id}", "secret_access_key": "{CREDENTIALS.secret_access_key}"}}'
    )
    return NodeFetchSettings(
        zone=f"zone-{index % plan.zones}",
        registry_url=tracker_url if plan.swarm else "",
        internal_token_file=token,
        s3_endpoint_url=f"http://127.0.0.1:{store_port}",
        s3_credentials_file=credentials,
        cache_dir=folder / f"cache-{index}",
        down_bytes_per_s=plan.node_rate,
        up_bytes_per_s=plan.node_rate,
        timeout_s=3600,
        seed_s=3600,
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # covers only children that have ended
    return used.ru_utime + used.ru_stime
