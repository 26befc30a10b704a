"""Conversations in turns over two replicas, and the fleet's knowledge of their prefix caches between turns."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.fleets import Fleet, wait_until

MODEL = "smollm2-135m"
WORDS = ("river", "stone", "light", "paper", "window", "garden", "seven", "yellow", "quiet", "engine", "letter")
WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Turn:
    replica: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Conversation:
    """A conversation with its own system prompt, so that no two share a KV block."""

    seed: str
    opening_words: int
    turns: list[Turn] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, client: httpx.Client, words: int, max_tokens: int) -> Turn:
        rng = random.Random(f"{self.seed} {len(self.turns)}")
        if not self.messages:
            self.messages.append({"role": "system", "content": sentence(rng, self.opening_words)})
        self.messages.append({"role": "user", "content": sentence(rng, words)})
        length = {"max_tokens": max_tokens, "ignore_eos": True}
        body = {"model": MODEL, "messages": self.messages, "temperature": 0} | length
        answer = answered(client, body)
        content = answer.json()
        self.messages.append({"role": "assistant", "content": content["choices"][0]["message"]["content"]})
        usage = content["usage"]
        turn = Turn(
            answer.headers["x-shoal-replica"],
            usage["prompt_tokens"],
            (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        )
        self.turns.append(turn)
        return turn


def all_say(fleet: Fleet, talks: list[Conversation], words: int, max_tokens: int) -> None:
    """Send one turn of each conversation at once, long enough to overlap, so that they spread over the replicas.

    None is sent before all are connected: handshakes may take longer than answers on a busy machine.
    """
    connected = Barrier(len(talks))

    def say(talk: Conversation) -> None:
        with fleet.client(timeout_s=WAIT_S) as client:
            client.get("/models").raise_for_status()
            connected.wait(WAIT_S)
            talk.say(client, words=words, max_tokens=max_tokens)

    with ThreadPoolExecutor(len(talks)) as threads:
        for said in [threads.submit(say, talk) for talk in talks]:
            said.result()


def answered(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    """Send the request; retry while the pool is full."""
    until_s = time.monotonic() + WAIT_S
    while True:
        answer = client.post("/chat/completions", json=body)
        if answer.status_code not in (503, 504) or time.monotonic() > until_s:
            break
        time.sleep(float(answer.headers.get("retry-after", 1)))
    assert answer.status_code == 200, answer.text
    return answer


def all_at_home(talks: list[Conversation]) -> bool:
    """Return True if each conversation stayed on its replica with cache hits, and they use more than one replica."""
    stayed = all(turn.replica == talk.turns[0].replica for talk in talks for turn in talk.turns)
    found = all(turn.cached_tokens > 0 for talk in talks for turn in talk.turns[1:])
    return stayed and found and len({talk.turns[0].replica for talk in talks}) > 1


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def use_source(fleet: Fleet, source: str) -> None:
    """Push a policy with this prefix source; return when the gateway routes by it."""
    text = fleet.read("policies/routing.yaml")
    former = next(line for line in text.splitlines() if line.strip().startswith("prefix:"))
    wanted = f"  prefix: {{source: {source}}}"
    if former.split("#")[0].strip() == wanted.strip():
        return
    epoch = fleet.gateway_metric("shoal_snapshot_epoch")
    pushed = fleet.push({"policies/routing.yaml": text.replace(former, wanted)}, f"prefixes by {source}")
    assert pushed.returncode == 0, pushed.stderr
    wait_until("the gateway has it", lambda: fleet.gateway_metric("shoal_snapshot_epoch") > epoch, WAIT_S)


def until_known(fleet: Fleet, source: str, replicas: int) -> None:
    wait_until(
        "all replicas tell",
        lambda: figure(fleet, "shoal_prefix_replicas_known", source=source) == replicas,
        WAIT_S,
    )


def until_told(fleet: Fleet, source: str, replicas: int, lessons: float) -> None:
    """Wait until the gateway knows all blocks that the agents know, and has learnt the prompts so far."""
    until_known(fleet, source, replicas)
    wait_until("prompts are learnt", lambda: figure(fleet, "shoal_prefix_lessons_total") >= lessons, WAIT_S)
    wait_until(
        "all blocks are told",
        lambda: figure(fleet, "shoal_prefix_blocks_known", source=source) == blocks_at_agents(fleet, replicas) > 0,
        WAIT_S,
    )


def known_answers(fleet: Fleet) -> float:
    """Return the number of prompts found in the caches that replicas reported."""
    return figure(fleet, "shoal_prefix_answers_total", answer="known")


def figure(fleet: Fleet, name: str, **labels: str) -> float:
    """Return a metric of the gateway."""
    return read(f"http://127.0.0.1:{fleet.port_base + 5}/metrics", name, labels)


def blocks_at_agents(fleet: Fleet, replicas: int) -> float:
    ports = [fleet.port_base + 40 + slot for slot in range(replicas)]
    return sum(read(f"http://127.0.0.1:{port}/metrics", "shoal_kv_blocks_known", {}) for port in ports)


def read(url: str, name: str, labels: dict[str, str]) -> float:
    page = httpx.get(url, timeout=30.0).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
