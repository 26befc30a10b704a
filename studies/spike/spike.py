"""The spike: a model receives five times the requests within 30 s, and new accelerators take five minutes.

    4 replicas serve (one more is warm, or serves too: `arms`), half busy; 15 % of the requests are batch
    at 60 s the requests rise to 5 times as many within 30 s, stay there for 8 minutes, and fall again
    a replica that is started serves 300 s later
    a second pool with a smaller model, hardly busy, may answer as a fallback

The figures cover requests from the beginning of the spike to its end. Runs are deterministic by seed.

Neighbours: `arms` acts, `timeline` records, `figures` sums up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from functions.api.ids import PoolName
from functions.api.snapshot import AdmissionEntry, BandEntry, FallbackEntry, RoutingEntry
from functions.decisions.admission.bands import rules_of
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.simulator.fleet.engine_profile import PROFILES, EngineProfile
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.fleet.simulation import Actor, Simulation
from functions.simulator.fleet.start_times import StartTimes
from functions.simulator.workload.crowd import Spike
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, merged, synthetic
from studies.scaling.others import Bounds
from studies.scaling.scaler import HpaScaler, KpaScaler
from studies.spike.arms import LOOK_S, ArmName, LadderController, ScaledBy, without_warm
from studies.spike.timeline import EVERY_S, Recorder

LARGE, SMALL = PoolName("large"), PoolName("small")
_NEAR_REAL_TIME = 1  # band of the small pool's own requests, so that all interactive ones belong to the large pool
SLO_MS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SpikeSetting:
    profile: EngineProfile = PROFILES["h100-8b"]
    small_profile: EngineProfile = PROFILES["sim"]
    replica_per_s: float = 12.0
    """Requests of this traffic that one large replica serves within the target (12 a second: p99 399 ms, 14: 821)."""
    replicas: int = 4
    warm: int = 1
    small_replicas: int = 2
    small_per_s: float = 8.0
    most_replicas: int = 24
    busy_ratio: float = 0.5
    factor: float = 5.0
    at_s: float = 60.0
    rise_s: float = 30.0
    lasts_s: float = 480.0
    after_s: float = 60.0
    start_s: float = 300.0
    batch_ratio: float = 0.15

    @property
    def base_per_s(self) -> float:
        return self.busy_ratio * self.replicas * self.replica_per_s

    @property
    def ends_s(self) -> float:
        return self.at_s + self.rise_s + self.lasts_s


ADMISSION = AdmissionEntry(
    "spike",
    ("*",),
    (
        BandEntry("interactive", 0.6, ttft_slo_ms=SLO_MS),
        BandEntry("near-real-time", 0.3, ttft_slo_ms=2_000),
        BandEntry("batch", 0.1),
    ),
)
_TO_SMALL = RoutingEntry("spike", ("*",), fallback=(FallbackEntry("saturated", LARGE, SMALL),))


@dataclass(frozen=True, slots=True)
class SpikeRun:
    arm: ArmName
    seed: int
    recorder: Recorder
    accelerator_hours: float


def run(spike: SpikeSetting, arm: ArmName, seed: int) -> SpikeRun:
    recorder = Recorder(LARGE)
    actors = (_controller(spike, arm), (EVERY_S, recorder.act))
    simulation = Simulation(_setting(spike, arm), workload(spike, seed), actors)
    simulation.run()
    return SpikeRun(arm, seed, recorder, simulation.accelerator_seconds(LARGE) / 3600)


def workload(spike: SpikeSetting, seed: int) -> Iterator[WorkloadRequest]:
    """Yield requests of one turn: chats would extend the load by their length after the spike."""
    seconds = spike.ends_s + spike.rise_s + spike.after_s
    asked = Traffic(
        requests_per_s=spike.base_per_s,
        seconds=seconds,
        turns=1,
        batch_ratio=spike.batch_ratio,
        spikes=(Spike(at_s=spike.at_s, factor=spike.factor, rise_s=spike.rise_s, lasts_s=spike.lasts_s),),
        pool=LARGE,
    )
    others = Traffic(requests_per_s=spike.small_per_s, seconds=seconds, turns=1, pool=SMALL)
    return merged(synthetic(asked, 2 * seed), _near_real_time(synthetic(others, 2 * seed + 1)))


def _near_real_time(found: Iterator[WorkloadRequest]) -> Iterator[WorkloadRequest]:
    for asked in found:
        asked.band = _NEAR_REAL_TIME
        yield asked


def _setting(spike: SpikeSetting, arm: ArmName) -> Setting:
    is_warm, has_room = arm == "ladder", arm in ("ladder", "room")
    start = StartTimes(accelerator_s=0.0)
    start = replace(start, accelerator_s=spike.start_s - start.of("cold"))
    large = PoolSetting(
        name=LARGE,
        profile=spike.profile,
        replicas=spike.replicas if is_warm else spike.replicas + spike.warm,
        warm=spike.warm if is_warm else 0,
        start=start,
        routing=_TO_SMALL if has_room else None,
    )
    small = PoolSetting(name=SMALL, profile=spike.small_profile, replicas=spike.small_replicas)
    return Setting(
        pools=(large, small),
        admission=ADMISSION if has_room else None,
        ladder=arm == "ladder",
        block_tokens=BLOCK_TOKENS,
        until_s=spike.ends_s + spike.rise_s + spike.after_s,
    )


def _controller(spike: SpikeSetting, arm: ArmName) -> Actor:
    policy = ScalePolicy(
        min_replicas=spike.replicas,
        max_replicas=spike.most_replicas,
        warm=spike.warm,
        slo_s=SLO_MS / 1000,
        startup_s=spike.start_s,
    )
    if arm == "ladder":
        return LOOK_S, LadderController(LARGE, policy, rules_of(ADMISSION)[0].max_wait_s, spike.warm).act
    bounds = Bounds(least=without_warm(policy, spike.warm).min_replicas, most=spike.most_replicas)
    target_per_s = policy.target_utilization_ratio * spike.replica_per_s
    if arm in ("room", "hpa"):
        return LOOK_S, ScaledBy(LARGE, HpaScaler(target_per_s, bounds)).act
    return LOOK_S, _Kpa(target_per_s, bounds).act


class _Kpa:
    """KPA on requests in flight, which by Little's law are the rate times the service time: the same as for HPA."""

    def __init__(self, target_per_s: float, bounds: Bounds, takes_s: float = 5.0) -> None:
        self._under_way = 0.0
        self._scaled = ScaledBy(LARGE, KpaScaler(target_per_s * takes_s, bounds, lambda: self._under_way))

    def act(self, simulation: Simulation) -> None:
        clients = (client for gateway in simulation.gateways for client in gateway.clients.values())
        under_way = [client.serving_pool for client in clients]
        self._under_way = float(under_way.count(LARGE))
        self._scaled.act(simulation)
