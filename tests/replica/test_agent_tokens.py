"""What an agent tells of its engine's tokens: how many a second on an accelerator, and how many were guessed right."""

import json
import time
from pathlib import Path

import pytest

from tests.replica.conftest import BusProbe
from tests.replica.processes import POOL, AgentProcess, Engine, http

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

TOKENS = 400
CONFIG = json.dumps({"method": "ngram", "num_speculative_tokens": 3})


def test_tokens_and_drafts_of_an_engine_that_speculates(bus: BusProbe, tmp_path: Path) -> None:
    """Of counts that no agent reads, dashboards would show an acceptance of nothing by nothing."""
    flags = ("--speculative-config", CONFIG, "--sim-draft-acceptance-ratio", "0.5", "--sim-step-ms", "1")
    with (
        Engine(tmp_path, arguments=flags).run() as engine,
        AgentProcess(tmp_path, engine, bus.url).run() as agent,
    ):
        bus.wait_for_phase("ready")
        body = {"model": POOL, "messages": [{"role": "user", "content": "a"}], "max_tokens": TOKENS, "ignore_eos": True}
        status, answer = http("POST", f"{engine.url}/v1/chat/completions", body)
        assert status == 200, answer
        shown = until_shown(agent.url, "shoal_tokens_per_second_per_accelerator")
    drafts, accepted = (found(shown, f'outcome="{outcome}"') for outcome in ("proposed", "accepted"))
    assert drafts % 3 == 0 and 0 < accepted < drafts
    assert TOKENS - 1 <= drafts / 3 + accepted <= TOKENS + 20, "and what the agent asked for by itself"
    assert f'shoal_tokens_per_second_per_accelerator{{pool="{POOL}"}}' in shown


def until_shown(url: str, name: str) -> dict[str, float]:
    """The page, once that is above 0: the agent looks each second."""
    for _ in range(300):
        lines = http("GET", f"{url}/metrics")[1].decode().splitlines()
        shown = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("shoal_")}
        if found(shown, name) > 0:
            return shown
        time.sleep(0.1)  # the agent's own time
    raise AssertionError(f"{name} stays 0")


def found(shown: dict[str, float], part: str) -> float:
    (value,) = [value for name, value in shown.items() if part in name]
    return value
