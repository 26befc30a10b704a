"""`python -m loadtests.fairness [--live] [--quiet-per-s R] [--times-share 20] [--seconds S] [-o json]`."""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from functions.api.snapshot import AdmissionEntry, BandEntry
from loadtests.fairness.fleet import LiveFleet
from loadtests.fairness.live import offer
from loadtests.fairness.traffic import NOISY, QUIET, beside_the_nine
from loadtests.fairness.virtual import Shape, VirtualFleet, VirtualRequest

_WARM_UP_RATIO = 0.2  # share of the run that the figures leave out
_GOAL = 1.3
_LONG_TOKENS = 32_000


def main() -> int:
    options = _options()
    shape = Shape(replicas=options.engines)
    share_per_s = _prompts_per_s(shape) / (len(QUIET) + 1)
    noisy_per_s = options.times_share * share_per_s
    rows: dict[str, dict[str, Any]] = {}
    runs = {"alone": (0.0, True), "beside the noisy one": (noisy_per_s, True)}
    if not options.live:
        runs["beside it, without the admission queue"] = (noisy_per_s, False)
    for name, (rate, with_room) in runs.items():
        _say(f"{name}: nine send {options.quiet_per_s:g}/s in total, one sends {rate:.1f}/s of {_LONG_TOKENS} tokens")
        asked = beside_the_nine(options.quiet_per_s, rate, options.batch_per_s, options.seconds, options.seed)
        policy = _policy(options.stretch if options.live else 1.0)
        if options.live:
            rows[name] = asyncio.run(_live(options, shape, asked, policy))
        else:
            found = VirtualFleet(shape, policy if with_room else None).run(asked, options.seconds)
            rows[name] = _figures([(each, each.ttft_s, each.refused is not None) for each in found], options.seconds)
    ratio = rows["beside the noisy one"]["quiet_p99_ms"] / rows["alone"]["quiet_p99_ms"]
    if options.output == "json":
        sys.stdout.write(json.dumps({"run": vars(options), "rows": rows, "ratio_p99": ratio}, indent=1) + "\n")
    else:
        sys.stdout.write(
            _table(rows) + f"p99 of the nine with the noisy tenant over p99 without it: {ratio:.2f} (goal {_GOAL})\n"
        )
    return 0 if ratio <= _GOAL else 1


async def _live(
    options: argparse.Namespace, shape: Shape, asked: Sequence[VirtualRequest], policy: AdmissionEntry
) -> dict[str, Any]:
    tenants = dict.fromkeys((*QUIET, NOISY, "patient"), 1.0)
    with tempfile.TemporaryDirectory(prefix="shoal-fairness-") as name:
        fleet = LiveFleet(Path(name), shape, options.stretch, tenants, policy)
        with fleet.running():
            until_s = options.seconds * options.stretch
            samples = await offer(fleet, asked, options.stretch, until_s, _say_again)
    sys.stderr.write("\n")
    return _figures([(each.asked, each.ttft_s, each.status == 503) for each in samples], options.seconds)


def _prompts_per_s(shape: Shape) -> float:
    """Return the long prompts a second that the pool could prefill if it did nothing else."""
    steps = _LONG_TOKENS / shape.batched_tokens
    return shape.replicas / (steps * shape.step_ms / 1e3 + _LONG_TOKENS * shape.prefill_us_per_token / 1e6)


def _policy(stretch: float) -> AdmissionEntry:
    bands = (
        BandEntry("interactive", 0.6, ttft_slo_ms=int(500 * stretch)),
        BandEntry("near-real-time", 0.3, ttft_slo_ms=int(2000 * stretch)),
        BandEntry("batch", 0.1),
    )
    return AdmissionEntry("load", ("*",), bands)


def _figures(found: Sequence[tuple[VirtualRequest, float | None, bool]], seconds: float) -> dict[str, Any]:
    counted = [each for each in found if each[0].at_s >= _WARM_UP_RATIO * seconds]
    quiet = [each for each in counted if each[0].tenant in QUIET]
    noisy = [each for each in counted if each[0].tenant == NOISY]
    batch = [each for each in counted if each[0].tenant == "patient"]
    first_s = [ttft_s for _, ttft_s, _ in quiet if ttft_s is not None]
    return {
        "quiet_sent": len(quiet),
        "quiet_refused": sum(refused for _, _, refused in quiet),
        "quiet_p50_ms": _quantile_ms(first_s, 0.5),
        "quiet_p99_ms": _quantile_ms(first_s, 0.99),
        "noisy_sent": len(noisy),
        "noisy_served": sum(ttft_s is not None for _, ttft_s, _ in noisy),
        "batch_sent": len(batch),
        "batch_served": sum(ttft_s is not None for _, ttft_s, _ in batch),
    }


def _quantile_ms(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))] * 1000, 1) if ordered else 0.0


def _table(rows: dict[str, dict[str, Any]]) -> str:
    names = list(next(iter(rows.values())))
    lines = [" " * 38 + "".join(f"{name.replace('_', ' '):>15}" for name in names)]
    lines += [f"{run:38}" + "".join(f"{row[name]:>15}" for name in names) for run, row in rows.items()]
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.fairness", description=__doc__)
    parser.add_argument("--live", action="store_true", help="processes and sockets instead of virtual time")
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--quiet-per-s", type=float, default=120.0, help="requests a second of the nine together")
    parser.add_argument(
        "--times-share", type=float, default=20.0, help="load of the noisy tenant, in tenths of the pool's capacity"
    )
    parser.add_argument("--batch-per-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration, in the engines' time")
    parser.add_argument(
        "--stretch", type=float, default=4.0, help="real seconds per second of the engines' time, with --live"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


def _say_again(text: str) -> None:
    sys.stderr.write(f"\r{text} ")


if __name__ == "__main__":
    sys.exit(main())
