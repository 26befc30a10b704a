"""Three gateways act as one: a conversation finds its replica and cache through any of them.

Twelve conversations of five turns over four replicas, each turn to a random gateway, some at once. On a real cluster,
0.93 of the prompts were cached with one gateway. With three unconnected gateways it was 0.51, and 23 of 48 turns
reached the replica of the turn before (12 by chance).
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.more_gateways import Front, gateways
from tests.e2e.prefix_turns import MODEL, sentence
from tests.e2e.projects import PATIENT, project_with, without_limits
from tests.fleets import Fleet, running_fleet

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
REPLICAS, TALKS, TURNS, AT_ONCE = 4, 12, 5, 4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("many")
    project = without_limits(project_with(folder / "project", PATIENT))
    with running_fleet(folder / "state", "sim", REPLICAS, project) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def front(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with gateways(fleet, tmp_path_factory.mktemp("gateways"), 3) as front:
        yield front


@dataclass(slots=True)
class Talk:
    name: str
    names_session: bool
    words: int
    messages: list[dict[str, str]] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)

    def say(self, front: Front) -> None:
        rng = random.Random(f"{self.name} {len(self.replicas)}")
        if not self.messages:
            # Unique: a shared prompt would be cached at the first replica and attract all conversations.
            self.messages.append({"role": "system", "content": f"You are helpful to {self.name}. " * 15})
        self.messages.append({"role": "user", "content": sentence(rng, self.words)})
        body = {"model": MODEL, "messages": self.messages, "max_tokens": 24, "temperature": 0}
        answer = front.ask(body, {"x-session-id": self.name} if self.names_session else None)
        assert answer.status_code == 200, answer.text
        content = answer.json()
        self.messages.append({"role": "assistant", "content": content["choices"][0]["message"]["content"]})
        self.replicas.append(answer.headers["x-shoal-replica"])
        self.prompt_tokens.append(content["usage"]["prompt_tokens"])
        self.cached_tokens.append((content["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


@dataclass(slots=True)
class Talks:
    """Conversations that proceed in turns, some of them at once."""

    talks: list[Talk]
    front: Front

    def turn(self, front: Front | None = None) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda talk: talk.say(front or self.front), self.talks))

    @property
    def at_home(self) -> float:
        """Return the share of later turns that reached the same replica as the turn before."""
        pairs = [pair for talk in self.talks for pair in pairwise(talk.replicas)]
        return sum(before == after for before, after in pairs) / len(pairs)

    @property
    def cached(self) -> float:
        """Return the share of later turns' prompt tokens that was cached there."""
        prompt_tokens = sum(sum(talk.prompt_tokens[1:]) for talk in self.talks)
        return sum(sum(talk.cached_tokens[1:]) for talk in self.talks) / prompt_tokens


def talked(front: Front, name: str, *, names_session: bool, words: int) -> Talks:
    talks = Talks([Talk(f"{name}-{number}", names_session, words) for number in range(TALKS)], front)
    for _ in range(TURNS):
        talks.turn()
    assert len({talk.replicas[0] for talk in talks.talks}) > 1, "they did not all begin at one"
    print(f"{name}: {talks.at_home:.3f} at home, {talks.cached:.3f} cached")
    return talks


@pytest.mark.parametrize("names_session", [True, False])
def test_a_conversation_is_at_home_at_every_gateway(front: Front, names_session: bool) -> None:
    """The better of two rounds counts: on a busy machine a replica may seem slow, and its sessions move."""
    kind = "sessions" if names_session else "nameless"
    alone = talked(Front(front.gateways[:1], front.clients[:1]), f"one-{kind}", names_session=names_session, words=120)
    for attempt in range(2):
        talks = talked(front, f"three-{kind}-{attempt}", names_session=names_session, words=120)
        if talks.at_home >= 0.99:
            break
    assert talks.at_home >= 0.95
    assert talks.cached >= 0.95 * alone.cached


def test_most_conversations_need_no_word_among_gateways(front: Front) -> None:
    told = sum(gateway.metric("shoal_session_homes_exchanged_total", outcome="told") for gateway in front.gateways)
    known = sum(gateway.metric("shoal_session_homes") for gateway in front.gateways)
    assert 0 < told < known / 2
    assert sum(gateway.metric("shoal_session_homes_exchanged_total", outcome="heard") for gateway in front.gateways)


@pytest.mark.soak
def test_a_gateway_that_joins_and_one_that_leaves_change_nothing(fleet: Fleet, front: Front, tmp_path: Path) -> None:
    """A new gateway reads from the bus which homes differ from the assumed ones; a killed gateway loses no homes.

    On a busy machine replicas differ, and a turn is taken elsewhere for the better: of three rounds the best.
    """
    for attempt in range(3):
        talks = talked(front, f"join-{attempt}", names_session=True, words=40)
        with gateways(fleet, tmp_path / str(attempt), 3) as joined:
            leaver = joined.gateways[2].process
            assert leaver is not None
            talks.turn(Front(joined.gateways[1:2], joined.clients[1:2]))
            talks.turn(Front(joined.gateways[2:], joined.clients[2:]))
            leaver.kill()
            talks.turn(Front(joined.gateways[1:2], joined.clients[1:2]))
        print(f"with one that joins and one that leaves: {talks.at_home:.3f} at home")
        if talks.at_home >= 0.95:
            break
    assert talks.at_home >= 0.95
