"""A prefill pool's size, from the reports of gateways and agents to the desired size."""

from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from functions.api.ids import PoolName
from functions.api.snapshot import AdmissionEntry, AutoscalingEntry, BandEntry
from functions.controller.autoscaling.scaler import Policies, Scaler
from functions.decisions.health.pace import Pace
from functions.fleet.pool_board import PoolBoard, PoolReport, PoolSum, ReplicaReport
from functions.fleet.pool_heartbeat import PoolHeartbeat
from tests.controller.configs import load
from tests.controller.scaling.builders import IDLE, POOL, replica
from tests.gateway.engine_rig import Play
from tests.gateway.test_prefill_demand import SENDER, playing
from tests.gateway.test_split import LONG, PREFILL, ask
from tests.simulator.plan.configs import pool as declared

ADMISSION = AdmissionEntry("all", ("*",), (BandEntry("interactive", 0.6, ttft_slo_ms=2000),))


def reading(number: int, busy_ratio: float, pool: str = POOL) -> ReplicaReport:
    pace = Pace(1, 20, 0, 0.0, 0.0, busy_ratio=busy_ratio)
    return structs.replace(replica(number, pool=pool, running=int(busy_ratio > 0.5), kv_usage_ratio=0.1), pace=pace)


def policy(*up: str, down: tuple[str, ...] = (), least: int = 1, pool: str = POOL) -> AutoscalingEntry:
    return AutoscalingEntry("reads", PoolName(pool), least, 6, scale_up=up, scale_down=down)


def wanted(
    entry: AutoscalingEntry, told: PoolSum, busy_ratio: float, *, seconds: int = 900, replicas: int = 2
) -> Iterator[int]:
    """Return the desired size per second; new replicas are available at once."""
    scaler = Scaler("disk")
    for second in range(seconds):
        ready = [reading(number, busy_ratio, entry.pool) for number in range(replicas)]
        heard = PoolReport(True, {entry.pool: told}, tuple(ready))
        step = scaler.step(heard, [entry], [ADMISSION], {entry.pool: 2}, float(second), reading={entry.pool})
        replicas = step[entry.pool].replicas
        yield replicas


async def test_prefill_pool_with_waiting_prompts_grows_by_its_busy_ratio() -> None:
    """The report is made by a real gateway. The scaler used to see this pool as one without requests."""
    play = playing(reading={})
    asked = 0
    while not play.engines or play.engine.replica_id == "p0":
        ask(play, text=f"{asked} {LONG}")
        await play.connects()
        asked += 1
    assert asked > 2, "at last its queue turns one away"
    play.rig.clock.forward(1.0)
    board = PoolBoard()
    for beat in beats(play):
        assert board.record_heartbeat(beat, 0.0)
    told = board.sums(0.0)[PREFILL]
    assert (told.arrivals_per_s, told.degraded_per_s) == (asked, 1.0) and told.queue_s > 0.5
    sizes = list(wanted(policy("utilization > 75% for 2m: +1", pool=PREFILL), told, 0.97, seconds=130))
    assert (sizes[100], sizes[-1]) == (2, 3)


def beats(play: Play) -> list[PoolHeartbeat]:
    return play.gateway.services.admission.pools.heartbeats(SENDER, 1.0, [PREFILL], {})


BUSY = replace(IDLE, arrivals_per_s=2.0, arriving_tokens_per_s=8000.0, ttft_p50_s=0.4, ttft_p99_s=0.9)


def test_busy_prefill_pool_is_not_scaled_down_as_idle() -> None:
    """Each rule allows scaling down a pool without streams, cache or queue: one replica would do the prefill of six."""
    rules = ("kv_usage < 30% for 1m: -1", "utilization < 35% for 1m: -1", "queue_seconds < 0.1 for 1m: -1")
    assert min(wanted(policy(down=rules), BUSY, 0.7)) == 2
    assert min(wanted(policy(down=rules), BUSY, 0.1)) == 1


def test_busy_prefill_pool_does_not_scale_to_zero() -> None:
    sleepy = policy(least=0)
    assert list(wanted(sleepy, BUSY, 0.3))[-1] == 2
    assert list(wanted(sleepy, IDLE, 0.0))[-1] == 0


def test_revision_lists_its_prefill_pools() -> None:
    services = (declared("m"), declared("m-prefill", model="m", reads_gigabits_per_s=100))
    assert Policies.of("r1", load(*services)).reading == {"m-prefill"}
