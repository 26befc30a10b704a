"""Tables of `shoal simulate`: effects of a cascade's threshold, of host memory and of a prefill pool.

cascade --trace FILE    share of answers that each threshold escalates, from the entropies in traces: a cascade writes
                        the entropy of every small answer into its request's trace, escalated or not
offload                 loads for which host memory behind the KV cache pays, by its size and link
prefill                 prompts and loads for which a prefill pool pays, against one pool of as many accelerators
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

import msgspec
import orjson
from rich.table import Table

from functions.cli.refused import CommandRefused
from functions.cli.terminal import make_console
from functions.decisions.routing.cascade import Escalations, escalations, quantile_thresholds
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.host_memory import HostArm, HostExperiment
from functions.simulator.prefill_pools import PrefillArm, PrefillExperiment
from functions.telemetry.trace_row import TraceRow, rows

WANTED_RATIOS = (0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02, 0.01)
Step = tuple[str, str]  # (small pool, large pool)
_GIGABIT = 125_000_000


def cascade(trace: Path, thresholds: list[float], *, as_json: bool) -> None:
    wrong = [threshold for threshold in thresholds if not 0.0 <= threshold < inf]
    if wrong:
        raise CommandRefused(f"{wrong[0]:g} is not a threshold: use a number of nats a token, at least 0")
    if not trace.exists():
        raise CommandRefused(
            f"there is no {trace}: give a trace file, or a directory of them (SHOAL_GATEWAY_TRACE_DIR)"
        )
    recorded = entropies(rows(trace))
    if not recorded:
        raise CommandRefused(f"no answer in {trace} was judged: no request of it went through a cascade")
    tables = {step: table(found, thresholds) for step, found in sorted(recorded.items())}
    if as_json:
        sys.stdout.write(_as_json(tables, recorded).decode() + "\n")
        return
    console = make_console()
    for (small, large), lines in tables.items():
        shown = Table("threshold (nats)", "escalated", "of answers", box=None, pad_edge=False)
        for line in lines:
            shown.add_row(f"{line.threshold_nats:.3f}", f"{line.ratio:.1%}", f"{line.escalated}")
        console.print(f"{small} to {large}: {len(recorded[small, large])} answers judged")
        console.print(shown)


def entropies(recorded: Iterable[TraceRow]) -> dict[Step, list[float]]:
    found: dict[Step, list[float]] = defaultdict(list)
    for row in recorded:
        judged = row.route_score.get("cascade")
        if isinstance(judged, dict) and isinstance(judged.get("doubt_nats"), int | float):
            found[str(judged.get("from")), str(judged.get("to"))].append(float(judged["doubt_nats"]))
    return dict(found)


def table(found: list[float], thresholds: list[float]) -> list[Escalations]:
    """Return the escalations by threshold: the given thresholds, or those that escalate round shares."""
    wanted = sorted(set(thresholds or quantile_thresholds(found, WANTED_RATIOS)))
    return escalations(found, wanted)


def _as_json(tables: dict[Step, list[Escalations]], recorded: dict[Step, list[float]]) -> bytes:
    document = [
        {"from": small, "to": large, "answers": len(recorded[small, large]), "rows": [row._asdict() for row in lines]}
        for (small, large), lines in tables.items()
    ]
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def host_experiment(
    profile: str, replicas: int, thinking_s: float, seconds: float, kv_bytes_per_token: int
) -> HostExperiment:
    if profile not in PROFILES:
        raise CommandRefused(f"there is no profile {profile}: {', '.join(PROFILES)}")
    return HostExperiment(
        profile=PROFILES[profile],
        replicas=replicas,
        thinking_s=thinking_s,
        seconds=seconds,
        kv_bytes_per_token=kv_bytes_per_token,
    )


def offload(
    *,
    experiment: HostExperiment,
    loads: Sequence[float],
    sizes_gib: Sequence[float],
    links: Sequence[float],
    as_json: bool,
) -> None:
    arms = list(experiment.table(loads, sizes_gib, links))
    if as_json:
        sys.stdout.write(msgspec.json.encode(arms).decode() + "\n")
        return
    names = ("requests/s", "host", "link", "TTFT p50", "TTFT p99", "computed", "reloaded", "lost")
    shown = Table(*names, box=None, pad_edge=False)
    for arm in arms:
        shown.add_row(*_host_cells(arm))
    make_console().print(shown)


def _host_cells(arm: HostArm) -> tuple[str, ...]:
    return (
        f"{arm.requests_per_s:g}",
        f"{arm.host_gib:g} GiB" if arm.host_gib else "none",
        f"{arm.gigabytes_per_s:g} GB/s" if arm.host_gib else "",
        f"{arm.ttft_p50_ms:.0f} ms",
        f"{arm.ttft_p99_ms:.0f} ms",
        f"{arm.computed_ratio:.0%}",
        f"{arm.reloaded_ratio:.0%}",
        f"{arm.lost_ratio:.0%}",
    )


def prefill(
    *,
    profile: str,
    accelerators: int,
    lengths: Sequence[int],
    loads: Sequence[float],
    kv_bytes_per_token: int,
    gigabits_per_s: float,
    as_json: bool,
) -> None:
    if profile not in PROFILES:
        raise CommandRefused(f"there is no profile {profile}: {', '.join(PROFILES)}")
    experiment = PrefillExperiment(
        profile=PROFILES[profile],
        accelerators=accelerators,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_transfer_bytes_per_s=gigabits_per_s * _GIGABIT,
    )
    arms = list(experiment.table(lengths, loads))
    if as_json:
        sys.stdout.write(msgspec.json.encode(arms).decode() + "\n")
        return
    names = ("prompt", "load", "read + write", "TTFT p50", "TTFT p99", "gap p99", "split", "lost")
    shown = Table(*names, box=None, pad_edge=False)
    for arm in arms:
        shown.add_row(*_prefill_cells(arm, accelerators))
    make_console().print(shown)


def _prefill_cells(arm: PrefillArm, accelerators: int) -> tuple[str, ...]:
    return (
        f"{arm.prompt_tokens}",
        f"{arm.load:.0%}",
        f"{arm.reading} + {accelerators - arm.reading}" if arm.reading else f"{accelerators}",
        f"{arm.ttft_p50_ms:.0f} ms",
        f"{arm.ttft_p99_ms:.0f} ms",
        f"{arm.gap_p99_ms:.1f} ms",
        f"{arm.split_ratio:.0%}",
        f"{arm.lost_ratio:.0%}",
    )
