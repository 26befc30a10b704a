"""`shoal simulate prefill`: for which prompts and loads a prefill pool pays, beside one pool of equal accelerators."""

import sys
from collections.abc import Sequence

import msgspec
from rich.table import Table

from functions.cli.refused import Refused
from functions.cli.terminal import make_console
from functions.simulator.fleet.engine_profile import PROFILES
from functions.simulator.prefill_pools import PrefillArm, PrefillTrial

_GIGABIT = 125_000_000


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
        shown.add_row(*_cells(arm, accelerators))
    make_console().print(shown)


def _cells(arm: PrefillArm, accelerators: int) -> tuple[str, ...]:
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
