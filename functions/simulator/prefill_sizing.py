"""Size a prefill pool and an answering pool in place of one pool, to keep an SLO.

    share    = reading / (reading + writing)      of the work in one request, on the replicas that do it
    R of T   = T x share, rounded, and one more or less: the first that keeps the SLO
    answer   = the fewest T = R + W with such an R, found as `replicas_needed` finds one pool's

Beyond sixteen replicas a slice is simulated, as there. The gateway's own code decides which prompts the prefill pool
reads: if it would be later, the answering pool reads the prompt (`functions.decisions.routing.disaggregation`).
`prefill_pools` compares arrangements of the same accelerators; `shoal capacity` uses both sizes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from functions.api.ids import PoolName
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.outcome import Outcome
from functions.simulator.fleet.setting import PoolSetting, Setting
from functions.simulator.fleet.simulation import simulate
from functions.simulator.prefill_pools import ROUTING
from functions.simulator.replicas_needed import (
    SLICE_REPLICAS,
    OfferedLoad,
    check_one_request,
    fewest,
    keeps_slos,
    mean_tokens,
    traffic,
    work_s,
)
from functions.simulator.workload.synthetic import BLOCK_TOKENS, synthetic

_MODEL, _PREFILL = PoolName("model"), PoolName("model-prefill")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillReplicas:
    """Replicas of a prefill pool."""

    profile: EngineProfile
    kv_bytes_per_token: int
    kv_transfer_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    reading: int  # replicas
    writing: int
    ttft_p99_ms: float
    itl_p99_ms: float | None
    tokens_per_s: float  # prompt and output, at the offered load
    split_ratio: float  # share of requests whose prompts the prefill pool read
    simulated_replicas: int  # fewer if only a slice was simulated


def replicas_apart(
    writing: EngineProfile, reading: PrefillReplicas, load: OfferedLoad, seed: int, progress: Callable[[str], None]
) -> Apart:
    """Return the sizes of both pools; raise Unreachable if no sizes are enough."""
    check_one_request(writing, load)
    reading_s = load.prompt_tokens * reading.profile.prefill_ms_per_token / 1000
    writing_s = max(0.0, work_s(writing, load) - load.prompt_tokens * writing.prefill_ms_per_token / 1000)
    share = reading_s / (reading_s + writing_s)
    estimate = max(2, ceil(load.requests_per_s * (reading_s + writing_s)))
    part = min(1.0, SLICE_REPLICAS / estimate)
    slice_ = replace(load, requests_per_s=load.requests_per_s * part)
    found: dict[int, tuple[int, Outcome]] = {}

    def keeps(replicas: int) -> bool:
        for readers in _readers(replicas, share):
            progress(f"{readers} + {replicas - readers} replicas at {slice_.requests_per_s:,.1f} requests/s")
            outcome = _try(writing, reading, slice_, (readers, replicas - readers), seed)
            if keeps_slos(outcome, load):
                found[replicas] = readers, outcome
                return True
        return False

    total = fewest(keeps, max(2, ceil(estimate * part)))
    readers, outcome = found[total]
    band, gap_s = outcome.bands[0], outcome.gaps.quantile_s(0.99)
    return Apart(
        reading=ceil(readers / part - 1e-9),
        writing=ceil((total - readers) / part - 1e-9),
        ttft_p99_ms=band.ttft.quantile(0.99) or 0.0,
        itl_p99_ms=gap_s * 1000 if gap_s is not None else None,
        tokens_per_s=load.requests_per_s * mean_tokens(load),
        split_ratio=outcome.splits["pays"] / max(1, band.asked),
        simulated_replicas=total,
    )


def _readers(replicas: int, share: float) -> Iterator[int]:
    """Yield possible numbers of reading replicas, the likeliest first; none if there are too few for both pools."""
    first = min(replicas - 1, max(1, round(replicas * share)))
    yield from (each for each in (first, first + 1, first - 1) if 1 <= each < replicas)


def _try(
    writing: EngineProfile, reading: PrefillReplicas, load: OfferedLoad, sizes: tuple[int, int], seed: int
) -> Outcome:
    readers, writers = sizes
    pools = (
        PoolSetting(name=_MODEL, profile=writing, replicas=writers),
        PoolSetting(
            name=_PREFILL,
            profile=reading.profile,
            replicas=readers,
            model=_MODEL,
            role="prefill",
            kv_bytes_per_token=reading.kv_bytes_per_token,
            kv_transfer_bytes_per_s=reading.kv_transfer_bytes_per_s,
        ),
    )
    setting = Setting(pools=pools, routing=ROUTING, admission=None, block_tokens=BLOCK_TOKENS, extra_s=load.ttft_slo_s)
    return simulate(setting, synthetic(traffic(load, load.requests_per_s), seed))
