"""How many cores this process may use: those it may run on, and no more than its control group has a quota for.

A container on a machine of 64 cores may be allowed two; what counts the machine's own would start 64 engines there.

Worked example (test_worked_example_of_a_quota): 200 ms of every 100 ms are two cores; 150 ms are one whole core.
"""

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int:
    """At least 1. `membership` says in which control groups this process is, `cgroups` is where they are mounted."""
    return max(1, int(min(len(os.sched_getaffinity(0)), *_quotas(membership, cgroups))))


def _quotas(membership: Path, cgroups: Path) -> list[float]:
    """Of every group on the way up, in cores; infinite where there is none or it cannot be read."""
    quotas = [float("inf")]
    for line in _read(membership).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            quotas += [_of_version_2(_read(group / "cpu.max")) for group in _upwards(cgroups, path)]
        elif "cpu" in controllers.split(","):
            quotas += [
                _cores(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))
                for group in _upwards(cgroups / "cpu", path)
            ]
    return quotas


def _upwards(mounted: Path, path: str) -> list[Path]:
    """The group and those it is in. Within a container the path may be the host's; its own group is then the root."""
    group = Path(path.lstrip("/"))
    return [mounted / part for part in (group, *group.parents)]


def _of_version_2(text: str) -> float:
    quota, _, period = text.strip().partition(" ")
    return _cores(quota, period)


def _cores(quota: str, period: str) -> float:
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", -1 below, or no such file
        return float("inf")
    return cores if cores > 0 else float("inf")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
