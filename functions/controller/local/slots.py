"""Slots: a small number per replica, which determines its ports.

Rule: a replica keeps its slot for as long as it exists, so that scaling one pool never moves (and so never restarts)
a replica of another.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from functions.controller.autoscaling.allocation import SlotDemand, grant_slots


class TooManyReplicas(Exception):
    """There are more replicas than ports for them; lower minReplicas or --replicas."""


def fit_replicas(declared: Mapping[str, int], asked: Mapping[str, int], max_slots: int) -> dict[str, int]:
    """Return how many replicas each pool gets. Replicas that the pools' YAML declares come before further ones in
    `asked`. Worked example (test_worked_example_of_port_capacity): the autoscaler has 19 of A, which declares 2, and
    B is added with 4. B gets its 4 and A keeps 16."""
    demands = {name: SlotDemand(asked.get(name, least), least=least) for name, least in declared.items()}
    return {name: demand.serving for name, demand in grant_slots(demands, {}, max_slots).items()}


def assign_slots(replica_ids: Iterable[str], former: Mapping[str, int], max_slots: int) -> dict[str, int]:
    """Return a slot for each replica: its former one if that is valid and free, else the lowest free one, in the order
    of the ids. Raise TooManyReplicas if there are more than `max_slots`."""
    wanted = sorted(set(replica_ids))
    if len(wanted) > max_slots:
        raise TooManyReplicas(f"{len(wanted)} replicas are wanted; this machine has ports for {max_slots}")
    kept: dict[str, int] = {}
    for replica_id in wanted:
        slot = former.get(replica_id)
        if slot is not None and 0 <= slot < max_slots and slot not in kept.values():
            kept[replica_id] = slot
    free = iter(slot for slot in range(max_slots) if slot not in kept.values())
    return {replica_id: kept[replica_id] if replica_id in kept else next(free) for replica_id in wanted}


# Cores that this process may use: those of its affinity, limited by the quota of its control group.
#
# A container on a machine of 64 cores may be allowed only two; the machine's own count would start 64 engines there.
#
# Worked example (test_worked_example_of_a_quota): 200 ms of every 100 ms are two cores; 150 ms are one whole core.


CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int:
    """Return the number of usable cores, at least 1: the processor affinity or, if lower, the smallest quota of a
    control group. `membership` lists the control groups of this process; `cgroups` is the directory where they are
    mounted."""
    return max(1, int(min(len(os.sched_getaffinity(0)), *_quotas(membership, cgroups))))


def _quotas(membership: Path, cgroups: Path) -> list[float]:
    """Return the processor quotas, in cores, of this process's groups and their parents; infinity stands for a group
    without one or that cannot be read."""
    quotas = [float("inf")]
    for line in _read(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            quotas += [_cgroup2_cores(_read(group / "cpu.max")) for group in _upwards(cgroups, path)]
        elif "cpu" in controllers.split(","):
            quotas += [
                _cores(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))
                for group in _upwards(cgroups / "cpu", path)
            ]
    return quotas


def _upwards(mounted: Path, path: str) -> list[Path]:
    """Return the group and its parents. In a container the path may be the host's; its own group is then the root."""
    group = Path(path.lstrip("/"))
    return [mounted / part for part in (group, *group.parents)]


def _cgroup2_cores(text: str) -> float:
    quota, _, period = text.strip().partition(" ")
    return _cores(quota, period)


def _cores(quota: str, period: str) -> float:
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max" or no such file; a quota of -1 is checked below
        return float("inf")
    return cores if cores > 0 else float("inf")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
