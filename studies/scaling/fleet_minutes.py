"""Minutes of a recorded day under shoal's own scaler, request by request.

Neighbours: `day` simulates whole days in the fluid model; `fleet_run` runs the fleet.
"""

from dataclasses import dataclass
from itertools import takewhile
from math import ceil
from typing import Any

from functions.decisions.autoscaling.forecast import Demand
from functions.decisions.autoscaling.policy import ScalePolicy
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.plan.scaler import OwnScaler
from studies.scaling.day import DAY_S, Traffic
from studies.scaling.day_outcome import DayOutcome
from studies.scaling.fleet_run import FleetDay, FleetRun
from studies.scaling.jobs import jobs, with_bands
from studies.scaling.load import load_of
from studies.servegen.clients import read_clients
from studies.servegen.day import ServeGenDay

_BEGIN_S = 300
_BEGIN_RATIO = 0.78  # utilization of the pool in the first minutes


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    day: DayOutcome
    fleet: dict[str, Any]


def fleet_minutes(traffic: Traffic, begins_s: int, profile: EngineProfile, policy: ScalePolicy) -> FleetOutcome:
    """Run `traffic.seconds` from `begins_s` of its day on; `policy.slo_s` is the target for the first token."""
    today = read_clients(traffic.directory, traffic.pool, begins_s=traffic.day * DAY_S, seconds=DAY_S)
    patient = jobs(today)
    clients = read_clients(
        traffic.directory, traffic.pool, begins_s=traffic.day * DAY_S + begins_s, seconds=traffic.seconds
    )
    asked = ServeGenDay(clients=clients)
    mean_per_s = traffic.share_ratio * sum(rate for _, rate in asked.rates_per_s()) / len(asked.rates_per_s())

    def requests() -> ServeGenDay:
        return asked if traffic.share_ratio == 1.0 else ServeGenDay(clients=clients, requests_per_s=mean_per_s)

    first = takewhile(lambda row: row.at_s < _BEGIN_S, requests().requests(0))
    work_s = float(load_of(first, _BEGIN_S, profile).work_s.mean())
    day = FleetDay(
        profile=profile,
        replicas=max(1, ceil(work_s / _BEGIN_RATIO)),
        startup_s=policy.startup_s,
        slo_s=policy.slo_s or 1.0,
    )
    run = FleetRun(day, with_bands(requests().requests(0), patient), OwnScaler(policy, Demand()))
    return FleetOutcome(run.run(), run.figures())
