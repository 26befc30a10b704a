"""`python -m loadtests.overload [--live] [--times 1 2 5 10] [--capacity-per-s R] [--seconds S] [-o json]`.

Ten tenants chat. Goodput counts answers whose first token came within the promise. A rejected request is sent again
once, after its retry-after. Capacity is the rate that the engines serve without a long queue: 30 requests a second for
each default engine, found in virtual time.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from functions.api.snapshot import AdmissionEntry, BandEntry
from loadtests.fairness.fleet import LiveFleet
from loadtests.fairness.live import Sample, offer
from loadtests.fairness.traffic import chats
from loadtests.fairness.virtual import Shape, VirtualFleet, VirtualRequest

TENANTS = tuple(f"tenant-{number}" for number in range(10))
_SLO_S = 0.5
_WARM_UP_RATIO = 0.25  # share of the run; the gateway learns the pool's rate only after the pool was full once
_GOAL_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Seen:
    """One live or virtual request; times are in the engines' time."""

    at_s: float
    ttft_s: float | None
    whole: bool
    output_tokens: int
    refused_in_ms: float | None
    is_return: bool


def main() -> int:
    options = _options()
    shape = Shape(replicas=options.engines)
    rows: dict[str, dict[str, Any]] = {}
    for times in options.times:
        per_s = times * options.capacity_per_s * options.engines
        sys.stderr.write(f"{times:g} x capacity: {per_s:g} requests a second\n")
        asked = [
            each
            for tenant in TENANTS
            for each in chats(
                tenant, per_s / len(TENANTS), options.seconds, Random(f"{options.seed} {tenant}"), tries=1
            )
        ]
        asked.sort(key=lambda each: each.at_s)
        seen = asyncio.run(_live(options, shape, asked)) if options.live else _virtual(options, shape, asked)
        rows[f"{times:g} x"] = _figures(seen, options.seconds)
    peak = max(row["goodput_tokens_per_s"] for row in rows.values())
    for row in rows.values():
        row["of_peak"] = round(row["goodput_tokens_per_s"] / peak, 3) if peak else 0.0
    if options.output == "json":
        sys.stdout.write(json.dumps({"run": vars(options), "rows": rows}, indent=1) + "\n")
    else:
        sys.stdout.write(_table(rows))
    over = [row for times, row in zip(options.times, rows.values(), strict=True) if times > 1]
    return 0 if all(row["of_peak"] >= _GOAL_RATIO and row["ttft_p99_ms"] <= _SLO_S * 1000 for row in over) else 1


def _virtual(options: argparse.Namespace, shape: Shape, asked: Sequence[VirtualRequest]) -> list[Seen]:
    found = VirtualFleet(shape, _policy(1.0)).run(asked, options.seconds)
    return [
        Seen(
            each.at_s,
            each.ttft_s,
            each.ended_s is not None and each.refused is None,
            each.output_tokens,
            (each.ended_s - each.at_s) * 1000 if each.refused is not None and each.ended_s is not None else None,
            each.returned_from is not None,
        )
        for each in found
    ]


async def _live(options: argparse.Namespace, shape: Shape, asked: Sequence[VirtualRequest]) -> list[Seen]:
    stretch = options.stretch
    with tempfile.TemporaryDirectory(prefix="shoal-overload-") as name:
        fleet = LiveFleet(Path(name), shape, stretch, dict.fromkeys(TENANTS, 1.0), _policy(stretch))
        with fleet.running():
            samples = await offer(fleet, asked, stretch, options.seconds * stretch, _say_again)
    sys.stderr.write("\n")
    return [_seen(sample, stretch) for sample in samples if sample.status]


def _seen(sample: Sample, stretch: float) -> Seen:
    return Seen(
        sample.sent_s / stretch,
        sample.ttft_s / stretch if sample.ttft_s is not None else None,
        sample.whole,
        sample.asked.output_tokens,
        sample.took_s * 1000 if sample.status == 503 else None,  # not stretched: it is the gateway's own time
        sample.returned_from is not None,
    )


def _policy(stretch: float) -> AdmissionEntry:
    bands = (BandEntry("interactive", 0.9, ttft_slo_ms=int(_SLO_S * 1000 * stretch)), BandEntry("batch", 0.1))
    return AdmissionEntry("load", ("*",), bands)


def _figures(seen: Sequence[Seen], seconds: float) -> dict[str, Any]:
    from_s = _WARM_UP_RATIO * seconds
    counted = [each for each in seen if each.at_s >= from_s]
    first_s = [each.ttft_s for each in counted if each.ttft_s is not None]
    refused_ms = [each.refused_in_ms for each in counted if each.refused_in_ms is not None]
    good_tokens = sum(
        each.output_tokens for each in counted if each.whole and each.ttft_s is not None and each.ttft_s <= _SLO_S
    )
    back = [each for each in counted if each.is_return]
    got_in = sum(each.refused_in_ms is None for each in back)
    return {
        "sent": len(counted),
        "refused": len(refused_ms),
        "goodput_tokens_per_s": round(good_tokens / (seconds - from_s)),
        "ttft_p99_ms": _quantile(first_s, 0.99, 1000),
        "refused_p50_ms": _quantile(refused_ms, 0.5, 1),
        "refused_p99_ms": _quantile(refused_ms, 0.99, 1),
        "came_back": len(back),
        "then_got_in": round(got_in / len(back), 3) if back else None,
    }


def _quantile(values: Sequence[float], part: float, scale: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * scale, 1) if ordered else 0.0


def _table(rows: dict[str, dict[str, Any]]) -> str:
    names = list(next(iter(rows.values())))
    lines = [" " * 6 + "".join(f"{name.replace('_', ' '):>22}" for name in names)]
    lines += [f"{times:6}" + "".join(f"{row[name]!s:>22}" for name in names) for times, row in rows.items()]
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overload", description=__doc__)
    parser.add_argument("--live", action="store_true", help="processes and sockets instead of virtual time")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--times", type=float, nargs="+", default=[1.0, 2.0, 5.0, 10.0])
    parser.add_argument(
        "--capacity-per-s", type=float, default=30.0, help="requests a second of one engine, in the engines' time"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="duration, in the engines' time")
    parser.add_argument(
        "--stretch", type=float, default=4.0, help="real seconds per second of the engines' time, with --live"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


def _say_again(text: str) -> None:
    sys.stderr.write(f"\r{text} ")


if __name__ == "__main__":
    sys.exit(main())
