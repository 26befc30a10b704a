"""Prefill pools in `shoal capacity`: the sizes of a prefill and a decode pool for a load, compared with one pool.

If the two pools are cheaper, cost and placement use their sizes. `functions.simulator.prefill_sizing` finds the sizes,
`capacity_comparison` decides which arrangement pays.
"""

from collections.abc import Callable, Sequence

from functions.cli.capacity_comparison import PrefillComparison
from functions.cli.capacity_tables import PoolSizing
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter
from functions.simulator.prefill_sizing import Apart, PrefillReplicas, replicas_apart
from functions.simulator.replicas_needed import OfferedLoad, Unreachable, profile_from


def prefill_pool_of(found: PoolSizing, pools: Sequence[PoolSizing]) -> PoolSizing | None:
    """Return the prefill pool of the model that this pool serves, or None if there is none."""
    named = found.pool.model or found.pool.pool
    return next((each for each in pools if each.pool.reads and each.pool.model == named), None)


def compare(found: PoolSizing, reads: PoolSizing, reporter: TerminalReporter) -> None:
    """Size two pools for the load of `found`, which is already sized as one pool, and store the comparison in it. Do
    nothing without a load, or if the model does not fit in `reads`."""
    if found.load is None or not reads.memory.fits:
        return
    apart, trouble = None, ""
    with reporter.step(f"Replicas of {found.pool.pool} beside {reads.pool.pool}") as step:
        try:
            apart = _sized(found, reads, found.load, step.update)
        except Unreachable as error:
            trouble = str(error)
    priced = found.price_per_hour is not None and reads.price_per_hour is not None
    found.comparison = PrefillComparison(
        pool=found.pool.pool,
        reads=reads.pool.pool,
        apart=apart,
        one=found.needed,
        cost=_both(found, reads, apart, priced=priced) if apart is not None else None,
        one_cost=_cost(found, found.needed.replicas, priced=priced) if found.needed is not None else None,
        unit="an hour" if priced else "accelerators",
        trouble=trouble,
    )
    reads.reading = apart.reading if apart is not None and found.comparison.pays else 0
    if found.comparison.pays:
        found.trouble = ""


def _sized(found: PoolSizing, reads: PoolSizing, load: OfferedLoad, progress: Callable[[str], None]) -> Apart:
    if found.speed is None or reads.speed is None:
        raise CommandRefused(f"the speed of {reads.pool.pool} cannot be estimated: it runs on CPU, or has no KV cache")
    reading = PrefillReplicas(
        profile=profile_from(reads.speed, reads.memory, reads.pool.serving),
        kv_bytes_per_token=reads.pool.kv_bytes_per_token,
        kv_transfer_bytes_per_s=reads.pool.kv_transfer_bytes_per_s,
    )
    profile = profile_from(found.speed, found.memory, found.pool.serving)
    return replicas_apart(profile, reading, load, 0, progress)


def _both(found: PoolSizing, reads: PoolSizing, apart: Apart, *, priced: bool) -> float:
    return _cost(found, apart.writing, priced=priced) + _cost(reads, apart.reading, priced=priced)


def _cost(each: PoolSizing, replicas: int, *, priced: bool) -> float:
    accelerators = replicas * max(1, each.pool.serving.accelerators)
    return accelerators * (each.price_per_hour or 0.0) if priced else float(accelerators)
