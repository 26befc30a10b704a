"""Three gateways are one: a conversation finds its replica, and its cache, at whichever gateway its turns come to.

Twelve conversations of five turns over four replicas, each turn to a gateway by lot, some of them at once: with one
gateway 0.93 of their prompts were cached on a real cluster, with three that knew nothing of each other 0.51, and 23 of
48 turns went where the one before had gone (chance would be 12).
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

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
        dice = random.Random(f"{self.name} {len(self.replicas)}")
        if not self.messages:
            self.messages.append({"role": "system", "content": "You are helpful. " * 20})  # all have it
        self.messages.append({"role": "user", "content": sentence(dice, self.words)})
        body = {"model": MODEL, "messages": self.messages, "max_tokens": 24, "temperature": 0}
        answer = front.ask(body, {"x-session-id": self.name} if self.names_session else None)
        assert answer.status_code == 200, answer.text
        content = answer.json()
        self.messages.append({"role": "assistant", "content": content["choices"][0]["message"]["content"]})
        self.replicas.append(answer.headers["x-shoal-replica"])
        self.prompt_tokens.append(content["usage"]["prompt_tokens"])
        self.cached_tokens.append((content["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def talked(front: Front, name: str, *, names_session: bool, words: int) -> tuple[float, float]:
    """The share of later turns that went where the one before had gone, and of their prompts that was cached there."""
    talks = [Talk(f"{name}-{number}", names_session, words) for number in range(TALKS)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for _ in range(TURNS):
            list(threads.map(lambda talk: talk.say(front), talks))
    later = [(talk, turn) for talk in talks for turn in range(1, TURNS)]
    at_home = sum(talk.replicas[turn] == talk.replicas[turn - 1] for talk, turn in later) / len(later)
    cached = sum(talk.cached_tokens[turn] for talk, turn in later) / sum(
        talk.prompt_tokens[turn] for talk, turn in later
    )
    assert len({replica for talk in talks for replica in talk.replicas}) > 1, "not all of them at one"
    print(f"{name}: {at_home:.3f} at home, {cached:.3f} cached")
    return at_home, cached


@pytest.mark.parametrize("words", [60, 200])
@pytest.mark.parametrize("names_session", [True, False])
def test_a_conversation_is_at_home_at_every_gateway(front: Front, names_session: bool, words: int) -> None:
    kind = f"{'sessions' if names_session else 'nameless'}-{words}"
    alone = Front(front.gateways[:1], front.clients[:1])
    _, cached_alone = talked(alone, f"one-{kind}", names_session=names_session, words=words)
    at_home, cached = talked(front, f"three-{kind}", names_session=names_session, words=words)
    assert at_home >= 0.95
    assert cached >= 0.95 * cached_alone


def test_most_conversations_need_no_word_among_gateways(front: Front) -> None:
    told = sum(gateway.metric("shoal_session_homes_exchanged_total", outcome="told") for gateway in front.gateways)
    known = sum(gateway.metric("shoal_session_homes") for gateway in front.gateways)
    assert 0 < told < known / 2
    assert sum(gateway.metric("shoal_session_homes_exchanged_total", outcome="heard") for gateway in front.gateways)
