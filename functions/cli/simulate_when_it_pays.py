"""`shoal simulate offload` and `simulate prefill`: for which prompts and loads host memory behind the KV cache pays, by
its size and its link, and a prefill pool, beside one pool of equal accelerators.
"""

import sys
from collections.abc import Sequence

import msgspec
from rich.table import Table

from functions.cli.refused import Refused
from functions.cli.terminal import make_console
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.host_memory import HostArm, HostTrial
from functions.simulator.prefill_pools import PrefillArm, PrefillTrial

_GIGABIT = 125_000_000


def host_trial(profile: str, replicas: int, thinking_s: float, seconds: float, kv_bytes_per_token: int) -> HostTrial:
    if profile not in PROFILES:
        raise Refused(f"there is no profile {profile}: {', '.join(PROFILES)}")
    return HostTrial(
        profile=PROFILES[profile],
        replicas=replicas,
        thinking_s=thinking_s,
        seconds=seconds,
        kv_bytes_per_token=kv_bytes_per_token,
    )


def offload(
    *, trial: HostTrial, loads: Sequence[float], sizes_gib: Sequence[float], links: Sequence[float], as_json: bool
) -> None:
    arms = list(trial.table(loads, sizes_gib, links))
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
        raise Refused(f"there is no profile {profile}: {', '.join(PROFILES)}")
    trial = PrefillTrial(
        profile=PROFILES[profile],
        accelerators=accelerators,
        kv_bytes_per_token=kv_bytes_per_token,
        kv_transfer_bytes_per_s=gigabits_per_s * _GIGABIT,
    )
    arms = list(trial.table(lengths, loads))
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
