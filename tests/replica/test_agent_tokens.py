"""Token metrics of the agent: tokens per second per accelerator, and accepted draft tokens."""

import json
import time
from pathlib import Path

import pytest

from tests.replica.conftest import BusProbe
from tests.replica.processes import POOL, AgentProcess, Engine, http

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

WORDS = 200  # echoed by the engine, at least one token each
CONFIG = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
SPEED = f'shoal_tokens_per_second_per_accelerator{{pool="{POOL}"}}'


def test_tokens_and_drafts_of_an_engine_that_speculates(bus: BusProbe, tmp_path: Path) -> None:
    """Dashboards would show no draft acceptance without the agent's counts."""
    flags = ("--speculative-config", CONFIG, "--sim-draft-acceptance-ratio", "0.5", "--sim-step-ms", "1")
    with (
        Engine(tmp_path, arguments=flags).run() as engine,
        AgentProcess(tmp_path, engine, bus.url).run() as agent,
    ):
        bus.wait_for_phase("ready")
        asked = {"role": "user", "content": " ".join(f"word{number}" for number in range(WORDS))}
        status, answer = http(
            "POST", f"{engine.url}/v1/chat/completions", {"model": POOL, "messages": [asked], "max_tokens": 2000}
        )
        assert status == 200, answer
        shown = until_shown(agent.url)
    said = json.loads(answer)["usage"]["completion_tokens"]
    proposed, accepted = drafts(shown)
    assert proposed % 3 == 0 and 0 < accepted < proposed
    assert said - 1 <= proposed / 3 + accepted <= said + 50, "and what the agent asked for by itself"
    assert shown[SPEED] > 0


def until_shown(url: str) -> dict[str, float]:
    """Return the metrics once the agent has read its engine, which happens each second."""
    for _ in range(300):
        lines = http("GET", f"{url}/metrics")[1].decode().splitlines()
        shown = {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("shoal_")}
        proposed, accepted = drafts(shown)
        if proposed / 3 + accepted >= WORDS - 1 and shown[SPEED] > 0:
            return shown
        time.sleep(0.1)  # real time, since the agent is a process
    raise AssertionError(f"the agent never showed them: {shown}")


def drafts(shown: dict[str, float]) -> tuple[float, float]:
    """Return the numbers of proposed and accepted draft tokens."""
    by_outcome = {
        outcome: [value for name, value in shown.items() if f'outcome="{outcome}"' in name and "draft" in name]
        for outcome in ("proposed", "accepted")
    }
    (proposed,), (accepted,) = by_outcome.values()
    return proposed, accepted
