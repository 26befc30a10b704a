"""`shoal simulate calibrate --url URL`: measure an engine, fit its step costs and report their errors.

The engine must be idle otherwise for a minute or two. The output is a profile in the terms of `engine_profile`, and its
errors on held-out requests. Exit status 1 if the engine cannot be measured.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import httpx
import orjson
from rich.table import Table

from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console, make_error_console
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError
from functions.simulator.calibration.check import Comparison, compare, profile_of
from functions.simulator.calibration.fit import StepFit, TooFewPoints, fit
from functions.simulator.calibration.measure import (
    Answered,
    Engine,
    EngineUnusable,
    Plan,
    alone,
    held_out,
    held_out_requests,
    together,
)
from functions.simulator.fleet.engine_profile import EngineProfile

KV_TOKENS = 131_072  # default if neither the option nor the engine gives it


def calibrate(
    *,
    url: str,
    model: str,
    api_key_file: Path | None,
    step_budget_tokens: int,
    max_sequences: int,
    kv_tokens: int | None,
    requests: int,
    seconds: float,
    as_json: bool,
) -> None:
    plan = replace(Plan(), held_out=requests, held_out_seconds=seconds)
    reporter = TerminalReporter(make_error_console())
    try:
        api_key = api_key_file.read_text().strip() if api_key_file is not None else None
        with reporter.step("Measuring") as step:
            found = asyncio.run(_measured(url, model, api_key, plan, step.update))
        fitted, answers, told_kv_tokens = found
        kv = kv_tokens or told_kv_tokens or KV_TOKENS
        profile = profile_of(fitted, step_budget_tokens=step_budget_tokens, max_sequences=max_sequences, kv_tokens=kv)
    except (EngineUnusable, TooFewPoints, OSError, ValueError) as error:
        raise CommandRefused(str(error)) from error
    comparison = compare(profile, fitted.overhead_ms, held_out_requests(plan), answers)
    if as_json:
        shown = {"profile": asdict(profile), "fit": asdict(fitted), "held_out": _as_json(comparison)}
        sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(profile, fitted, comparison, len(answers))


async def _measured(
    url: str, model: str, api_key: str | None, plan: Plan, say: Callable[[str], None]
) -> tuple[StepFit, list[Answered], int | None]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits) as http:
        engine = Engine(http, url, model, api_key, Random(plan.seed))  # noqa: S311 - not security-relevant
        firsts, gaps = await alone(engine, plan, say), await together(engine, plan, say)
        answers = await held_out(engine, held_out_requests(plan), say)
        firsts += await alone(engine, plan, say)  # measured again, because the load of a shared machine changes
        gaps += await together(engine, plan, say)
        try:
            metrics = await EngineClient(http, url).metrics()
            kv_tokens = (metrics.num_gpu_blocks or 0) * (metrics.block_size_tokens or 0) or None
        except EngineError:
            kv_tokens = None  # a proxy's address, or another kind of engine
    return fit(firsts, gaps), answers, kv_tokens


def _as_json(comparison: Comparison) -> dict[str, dict[str, float]]:
    return {name: {**asdict(one), "error_ratio": one.error_ratio} for name, one in comparison.items()}


def _show(profile: EngineProfile, fitted: StepFit, comparison: Comparison, requests: int) -> None:
    console = make_console()
    console.print("Profile (functions/simulator/fleet/engine_profile.py):")
    for name, value in asdict(profile).items():
        console.print(f"  {name} = {value:.6g}")
    console.print(f"and {fitted.overhead_ms:.1f} ms of each first token that no step explains")
    console.print(
        f"Errors of fitted points: {fitted.ttft_error_ratio:.1%} (first tokens), {fitted.gap_error_ratio:.1%} (gaps)"
    )
    table = Table(f"{requests} requests held out", "measured ms", "simulated ms", "error", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, one in comparison.items():
        table.add_row(
            name.replace("_", " "), f"{one.measured_ms:,.1f}", f"{one.simulated_ms:,.1f}", f"{one.error_ratio:+.1%}"
        )
    console.print(table)
