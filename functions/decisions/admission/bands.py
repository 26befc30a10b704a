"""Service classes ("bands") of a pool: guaranteed shares in strict order, lent to other bands while idle.

A band's use is measured in the pool resource that it uses most. A band below its share is entitled to dispatch.
Entitled bands go in strict order, interactive first. Above its share, a band may borrow idle shares in the same order.
Only a part of an idle share is lent (interactive 50 %, near-real-time 90 %, batch 100 %). The rest stays free for its
owner, because a dispatched request is not preempted.

    may borrow:  total use + sum over others of (1 - lent) x (share - use, where positive) < 1

Worked example (test_worked_example_of_lending): shares 0.6, 0.3, 0.1; only batch has work. Reserved for interactive:
0.5 x 0.6 = 0.3, for near-real-time 0.1 x 0.3 = 0.03. Batch may use 0.67 of the pool.

Batch borrows only while total use is below 70 %. While the interactive band is overloaded (`bounds`), batch falls back
to a floor of 5 %. No band starves: batch is entitled below its floor, and a band that had requests waiting for
`STARVED_S` without a dispatch goes before all others, once. (In a pool with room for one request, shares do not apply.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from functions.api.snapshot import AdmissionEntry, BandEntry, ServiceClass
from functions.decisions.admission.ticket import BANDS

BATCH = 2
LENT_RATIO = (0.5, 0.9, 1.0)
BATCH_BORROWS_BELOW_RATIO = 0.7
BATCH_FLOOR_RATIO = 0.05
STARVED_S = 10.0
_SLO_MS = (2_000, 10_000, None)  # defaults if the policy sets no SLO
_ENGINE_PATIENCE_MS: dict[ServiceClass, int] = {"interactive": 500, "near-real-time": 2_000, "batch": 60_000}
_MAX_WAIT_S = (10.0, 30.0, 600.0)  # defaults if the policy sets neither a maximum wait nor an SLO


@dataclass(frozen=True, slots=True)
class BandRules:
    """Rules of one band under a pool's policy."""

    share_ratio: float
    slo_s: float | None
    max_wait_s: float
    """Longest time that a request may wait for room."""


def rules_of(policy: AdmissionEntry) -> tuple[BandRules, ...]:
    """Return the admission rules of each entry of BANDS under a pool's policy. A class that the policy does not name
    has share 0 (batch: its floor)."""
    written = {band.name: band for band in policy.bands}
    found = []
    for index, name in enumerate(BANDS):
        band, default_ms = written.get(name), _SLO_MS[index]
        share = band.share_ratio if band is not None else 0.0
        promised_ms = band.ttft_slo_ms if band is not None else None
        slo_ms = promised_ms or default_ms
        found.append(
            BandRules(
                share_ratio=max(share, BATCH_FLOOR_RATIO) if index == BATCH else share,
                slo_s=slo_ms / 1000 if slo_ms is not None else None,
                max_wait_s=_max_wait_s(band, index),
            )
        )
    return tuple(found)


def _max_wait_s(band: BandEntry | None, index: int) -> float:
    """Return the band's maximum wait in seconds: the policy's, else half of the policy's TTFT SLO (the rest is left for
    the prefill), else the default."""
    if band is not None and band.max_wait_ms is not None:
        return band.max_wait_ms / 1000
    if band is not None and band.ttft_slo_ms is not None:
        return band.ttft_slo_ms / 2000
    return _MAX_WAIT_S[index]


def engine_priority(service_class: ServiceClass, now_unix_ms: int) -> int:
    """Return the engine's sort key in Unix milliseconds, least first: now plus the patience of the class. So no class
    starves for good."""
    return now_unix_ms + _ENGINE_PATIENCE_MS[service_class]


def may_dispatch(
    band: int, use_ratios: Sequence[float], total_ratio: float, rules: Sequence[BandRules], overloaded: bool
) -> bool:
    """Return True if the band may dispatch one more request, within its share or by borrowing."""
    return is_entitled(band, use_ratios, rules, overloaded) or _may_borrow(
        band, use_ratios, total_ratio, rules, overloaded
    )


def is_entitled(band: int, use_ratios: Sequence[float], rules: Sequence[BandRules], overloaded: bool) -> bool:
    """Return True if the band uses less than its share of the pool; batch has only its floor in overload."""
    share = BATCH_FLOOR_RATIO if band == BATCH and overloaded else rules[band].share_ratio
    return use_ratios[band] < share


def order(
    waiting: Sequence[bool], starved: Sequence[bool], use_ratios: Sequence[float], rules: Sequence[BandRules], *,
    total_ratio: float, overloaded: bool,
) -> list[int]:  # fmt: skip
    """Return the waiting bands that may dispatch: starved, then entitled, then borrowing; each group by urgency."""
    ranked = []
    for band, has_work in enumerate(waiting):
        if not has_work:
            continue
        if starved[band]:
            ranked.append((0, band))
        elif is_entitled(band, use_ratios, rules, overloaded):
            ranked.append((1, band))
        elif _may_borrow(band, use_ratios, total_ratio, rules, overloaded):
            ranked.append((2, band))
    return [band for _, band in sorted(ranked)]


def drain_share_ratio(band: int, waiting: Sequence[bool], rules: Sequence[BandRules], overloaded: bool) -> float:
    """Return the estimated share of the pool's dispatch rate that goes to the band while the same bands have requests
    waiting; the most urgent of them gets what the others' shares leave."""
    shares = [
        0.0 if not has_work else BATCH_FLOOR_RATIO if index == BATCH and overloaded else rules[index].share_ratio
        for index, has_work in enumerate(waiting)
    ]
    first = next((index for index, has_work in enumerate(waiting) if has_work), band)
    if band <= first:
        return max(1.0 - sum(shares[index] for index in range(len(shares)) if index != band), shares[band])
    return max(shares[band], rules[band].share_ratio, BATCH_FLOOR_RATIO)


def _may_borrow(
    band: int, use_ratios: Sequence[float], total_ratio: float, rules: Sequence[BandRules], overloaded: bool
) -> bool:
    if band == BATCH and (overloaded or total_ratio >= BATCH_BORROWS_BELOW_RATIO):
        return False
    kept = 0.0
    for other, rule in enumerate(rules):
        if other != band and use_ratios[other] < rule.share_ratio:
            kept += (1.0 - LENT_RATIO[other]) * (rule.share_ratio - use_ratios[other])
    return total_ratio + kept < 1.0
