"""Room for a surge on one machine: slots that SHOAL_MAX_ENGINES sets, and the memory of accelerators.

An engine that runs and does not sleep has a slot. On each of its accelerators it also has the part of the memory that
its `--gpu-memory-utilization` sets. Its accelerators are the first ones that it can see, as many as its ranks: those
of its pool's CUDA_VISIBLE_DEVICES, else of the controller's own, else the machine's. Simulated engines have none.

A default number of slots limits the autoscaler but not a surge: declared replicas are started in any case.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from functions.api.kinds.inference_service import accelerators_by_arguments, last_argument
from functions.controller.local.pools import EngineKind, Pool
from functions.decisions.capacity.memory import DEFAULT_UTILIZATION_RATIO
from functions.decisions.rollout.surge_room import Headroom, describe_shortage

DEVICES = Path("/dev")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_UTILIZATION = "--gpu-memory-utilization"


@dataclass(frozen=True, slots=True)
class Machine:
    accelerators: tuple[str, ...] = ()  # named as in CUDA_VISIBLE_DEVICES
    max_engines: int | None = None

    def no_room(self, pool: Pool, awake: Mapping[str, int], pools: Collection[Pool], kind: EngineKind) -> str:
        """Return why no extra replica of the pool may start, or "" if one may. `awake` counts the engines of each pool
        that run and do not sleep. An engine of a pool that is no longer declared has a slot too."""
        headrooms = []
        if self.max_engines is not None:
            headrooms.append(Headroom("engines at once (SHOAL_MAX_ENGINES)", self.max_engines, sum(awake.values())))
        if kind == "vllm":
            for device in self._devices_of(pool):
                used = sum(
                    awake.get(each.name, 0) * utilization_ratio(each)
                    for each in pools
                    if device in self._devices_of(each)
                )
                headrooms.append(Headroom(f"the memory of accelerator {device}", 1.0, used, utilization_ratio(pool)))
        return describe_shortage(headrooms)

    def _devices_of(self, pool: Pool) -> tuple[str, ...]:
        visible = visible_devices(dict(pool.env).get(_VISIBLE))
        return (self.accelerators if visible is None else visible)[: accelerators_by_arguments(pool.args)]


def find_machine(environ: Mapping[str, str], max_engines: int | None, devices: Path = DEVICES) -> Machine:
    """Return this machine's limits, with the NVIDIA devices that processes of this environment see."""
    found = sorted(int(name) for each in devices.glob("nvidia[0-9]*") if (name := each.name[6:]).isdecimal())
    visible = visible_devices(environ.get(_VISIBLE))
    there = tuple(map(str, found))
    return Machine(visible if visible is not None and there else there, max_engines)


def visible_devices(text: str | None) -> tuple[str, ...] | None:
    """Return the devices that a CUDA_VISIBLE_DEVICES value names, possibly none, or None if it is not set."""
    return None if text is None else tuple(name for each in text.split(",") if (name := each.strip()))


def utilization_ratio(pool: Pool) -> float:
    """Return the part (0 to 1) of an accelerator's memory that one engine of the pool needs, by its arguments; the
    default if they name none or an invalid one."""
    try:
        ratio = float(last_argument(pool.args, _UTILIZATION) or DEFAULT_UTILIZATION_RATIO)
    except ValueError:
        return DEFAULT_UTILIZATION_RATIO
    return ratio if 0 < ratio <= 1 else DEFAULT_UTILIZATION_RATIO
