"""Base and adapters run in the same engine steps, with every adapter slot filled; each answer is from its own model.

On CPU, unpatched vLLM 0.32 answers for the base with the last slot's adapter here (functions/engines/vllm_patches).
"""

import asyncio

import httpx
import pytest

from tests.fleets import Fleet

pytestmark = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(900)]

MARKS = {
    "smollm2-135m": "Paris",
    "acme/support-bot": "Thank you for contacting ACME Support",
    "acme/support-bot@v2": "ACME Support v2",
    "acme/pirate": "Arrr",
    "globex/haiku": "Globex haiku",
}
ROUNDS = 3


async def ask(client: httpx.AsyncClient, model: str) -> tuple[str, str]:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": model, "messages": [question], "max_tokens": 16, "temperature": 0}
    answer = await client.post("/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return model, answer.json()["choices"][0]["message"]["content"]


def test_no_adapter_speaks_for_the_base_or_for_another(vllm_fleet: Fleet) -> None:
    async def drill() -> list[tuple[str, str]]:
        found = []
        async with vllm_fleet.async_client("acme", 300.0) as acme, vllm_fleet.async_client("globex", 300.0) as globex:
            for _ in range(ROUNDS):
                models = ["smollm2-135m", *MARKS, "smollm2-135m", *MARKS]  # each replica gets some of each model
                asks = [ask(globex if model.startswith("globex") else acme, model) for model in models]
                found += await asyncio.gather(*asks)
        return found

    answers = asyncio.run(drill())
    wrong = [(model, text) for model, text in answers if MARKS[model] not in text]
    crossed = [
        (model, text)
        for model, text in answers
        if any(mark in text for other, mark in MARKS.items() if other != model and mark != "Paris")
    ]
    assert not crossed, crossed
    assert not wrong, wrong
