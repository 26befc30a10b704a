"""Step costs fitted to measurements: known costs are recovered, and a held-out run shows the error."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from functions.cli.main import app
from functions.simulator.calibration.check import compare, profile_of, quantile, simulated
from functions.simulator.calibration.fit import FirstToken, Gap, StepFit, TooFewPoints, fit, nonnegative_least_squares
from functions.simulator.calibration.measure import Answered, Plan, held_out_requests
from functions.simulator.fleet.engine_profile import PROFILES
from tests.ports import free_port

FIRSTS = [FirstToken(tokens, 3.0 + 8.0 + 0.05 * tokens) for tokens in (32, 128, 768)]
GAPS = [
    Gap(streams, context, 8.0 + 0.1 * streams + 0.0002 * streams * context)
    for streams in (1, 4, 8)
    for context in (40.0, 500.0)
]


def test_fit_recovers_a_known_profile() -> None:
    """The worked example of the prologue."""
    found = fit(FIRSTS, GAPS)
    costs = (found.overhead_ms, found.step_ms, found.prefill_ms_per_token)
    assert costs == pytest.approx((3.0, 8.0, 0.05))
    assert (found.decode_ms_per_sequence, found.decode_ms_per_kv_token) == pytest.approx((0.1, 0.0002))
    assert (found.ttft_error_ratio, found.gap_error_ratio) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_fitted_costs_are_never_negative() -> None:
    falling = [Gap(streams, 40.0, 10.0 - 0.1 * streams) for streams in (1, 2, 4)]
    found = fit(FIRSTS, falling)
    assert found.decode_ms_per_sequence == 0.0
    assert found.step_ms == pytest.approx(9.8, abs=0.1)
    assert nonnegative_least_squares([[1.0], [1.0]], [2.0, 2.0]) == [pytest.approx(2.0)]


@pytest.mark.parametrize(("firsts", "gaps"), [(FIRSTS[:1], GAPS), (FIRSTS, GAPS[:2])])
def test_fit_with_too_few_points_is_refused(firsts: list[FirstToken], gaps: list[Gap]) -> None:
    with pytest.raises(TooFewPoints, match="at least two"):
        fit(firsts, gaps)


def test_a_run_of_the_profile_itself_has_no_error() -> None:
    profile, requests = PROFILES["sim"], held_out_requests(Plan(held_out=40, held_out_seconds=20.0))
    first_s, last_s, _ = simulated(profile, requests)
    answers = [
        Answered(request.at_s, tuple(_between(first + 0.005, last + 0.005, request.output_tokens)))
        for request, first, last in zip(requests, first_s, last_s, strict=True)
    ]
    found = compare(profile, 5.0, requests, answers)
    assert list(found) == ["e2e_p50", "e2e_p99", "itl_p50", "itl_p99", "ttft_p50", "ttft_p99"]
    for name in ("e2e_p50", "e2e_p99", "ttft_p50", "ttft_p99"):
        assert found[name].error_ratio == pytest.approx(0.0, abs=1e-6), name


def _between(first_s: float, last_s: float, count: int) -> Iterator[float]:
    return (first_s + (last_s - first_s) * index / (count - 1) for index in range(count))


def test_held_out_requests_depend_only_on_the_seed() -> None:
    assert held_out_requests(Plan()) == held_out_requests(Plan()) != held_out_requests(Plan(seed=1))
    assert all(8 <= each.prompt_tokens <= 512 for each in held_out_requests(Plan()))


def test_profile_with_too_small_a_step_budget_is_refused() -> None:
    found = StepFit(1.0, 8.0, 0.05, 0.1, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="raise step_budget_tokens"):
        profile_of(found, step_budget_tokens=8, max_sequences=8, kv_tokens=100)
    assert quantile([], 0.5) == 0.0


@pytest.mark.soak
@pytest.mark.servers
@pytest.mark.timeout(400)
def test_calibration_finds_the_costs_of_a_running_engine(tmp_path: Path) -> None:
    """Steps are so long that catch-up after a machine pause (0.25 s at most) matters little.

    A pause during one measurement shifts costs between step and sequences; their sum for two streams is robust.
    """
    port, step_ms = free_port(), 30.0
    command = [sys.executable, "-m", "functions.engines.sim", "--port", str(port), "--model", "m"]
    with (tmp_path / "log").open("wb") as log:
        engine = subprocess.Popen([*command, f"--sim-step-ms={step_ms}"], stdout=log, stderr=log)
    try:
        _until_listening(tmp_path / "log")
        arguments = ["--url", f"http://127.0.0.1:{port}", "--requests", "20", "--seconds", "4", "-o", "json"]
        result = CliRunner().invoke(app, ["simulate", "calibrate", *arguments])
    finally:
        engine.kill()
        engine.wait()
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["profile"]["kv_tokens"] == PROFILES["sim"].kv_tokens
    costs = found["profile"]
    gap_ms = costs["step_ms"] + 2 * (costs["decode_ms_per_sequence"] + 200 * costs["decode_ms_per_kv_token"])
    assert gap_ms >= 0.7 * step_ms, "it sleeps so long; a busy machine adds to it"
    assert set(found["held_out"]) == {f"{what}_{share}" for what in ("ttft", "itl", "e2e") for share in ("p50", "p99")}


def test_calibration_without_an_engine_is_refused() -> None:
    result = CliRunner().invoke(app, ["simulate", "calibrate", "--url", f"http://127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "does not list a model" in str(result.exception)


def _until_listening(log: Path) -> None:
    for _ in range(2400):
        if b"listening" in log.read_bytes():
            return
        time.sleep(0.05)
    pytest.fail(f"the engine did not start: {log.read_text()}")
