"""Three gateways behind the ingress act as one: a conversation finds its replica and cache through any of them.

Twelve conversations of five turns; a single gateway, reached directly, is the reference.
tests/e2e/test_many_gateways.py is the same with processes.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from tests.cluster.installation import ANSWER_S, Installation, wait_until
from tests.cluster.pool_size import held
from tests.e2e.prefix_turns import sentence

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
GATEWAYS, TALKS, TURNS, AT_ONCE = 3, 12, 5, 4
REPLICAS = 2
_ROLLED_S = 600.0


@pytest.fixture(scope="module")
def gateways(installation: Installation) -> Iterator[None]:
    """Ensure three gateways: raise min-scale to three during these tests if there are fewer, then restore it."""
    if len(installation.pods("gateway")) >= GATEWAYS:
        yield
        return
    former = installation.get("ksvc", "gateway")["spec"]["template"]["metadata"]["annotations"]
    _set_scale(installation, {"min-scale": str(GATEWAYS), "max-scale": str(max(GATEWAYS, int(_scale(former, "max"))))})
    wait_until("three gateways", lambda: len(installation.pods("gateway")) >= GATEWAYS, _ROLLED_S, every_s=1.0)
    yield
    _set_scale(installation, {"min-scale": _scale(former, "min"), "max-scale": _scale(former, "max")})


@pytest.fixture(scope="module", autouse=True)
def held_pool(installation: Installation) -> Iterator[None]:
    """Fix the pool at two replicas, since a replica that joins would attract conversations."""
    with held(installation, REPLICAS):
        yield


@dataclass(slots=True)
class Talk:
    name: str
    names_session: bool
    words: int
    messages: list[dict[str, str]] = field(default_factory=list)
    replicas: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)

    def say(self, client: httpx.Client, model: str) -> None:
        rng = random.Random(f"{self.name} {len(self.replicas)}")
        if not self.messages:
            # Unique: a shared prompt would be cached at the first replica and attract all conversations.
            self.messages.append({"role": "system", "content": f"You are helpful to {self.name}. " * 15})
        self.messages.append({"role": "user", "content": sentence(rng, self.words)})
        body = {"model": model, "messages": self.messages, "max_tokens": 24, "temperature": 0}
        headers = {"x-session-id": self.name} if self.names_session else None
        answer = client.post("/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        content = answer.json()
        self.messages.append({"role": "assistant", "content": content["choices"][0]["message"]["content"]})
        self.replicas.append(answer.headers["x-shoal-replica"])
        self.prompt_tokens.append(content["usage"]["prompt_tokens"])
        self.cached_tokens.append((content["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def talked(
    client: httpx.Client,
    model: str,
    name: str,
    *,
    names_session: bool,
    words: int,
    before_turn: Callable[[int], None] = lambda turn: None,
) -> tuple[float, float]:
    """Return the shares of later turns that reached the same replica again, and of their prompts cached there."""
    talks = [Talk(f"{name}-{random.getrandbits(32):x}", names_session, words) for _ in range(TALKS)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for turn in range(TURNS):
            before_turn(turn)
            list(threads.map(lambda talk: talk.say(client, model), talks))
    later = [(talk, turn) for talk in talks for turn in range(1, TURNS)]
    same = sum(talk.replicas[turn] == talk.replicas[turn - 1] for talk, turn in later)
    cached = sum(talk.cached_tokens[turn] for talk, turn in later) / sum(
        talk.prompt_tokens[turn] for talk, turn in later
    )
    replicas = len({replica for talk in talks for replica in talk.replicas})
    print(f"{name}: {same} of {len(later)} turns where the one before was, {cached:.3f} cached, {replicas} replicas")
    return same / len(later), cached


@pytest.mark.parametrize("words", [60, 200])
@pytest.mark.parametrize("names_session", [True, False])
def test_a_conversation_is_at_home_at_every_gateway(
    installation: Installation, gateways: None, key: str, names_session: bool, words: int
) -> None:
    kind = f"{'sessions' if names_session else 'nameless'}-{words}"
    with one_gateway(installation, key) as alone:
        _, cached_alone = talked(alone, installation.pool, f"one-{kind}", names_session=names_session, words=words)
    with installation.client(key) as client:
        at_home, cached = talked(
            client, installation.pool, f"three-{kind}", names_session=names_session, words=words
        )  # fmt: skip
    assert at_home >= 0.99
    assert cached >= 0.95 * cached_alone


@pytest.mark.parametrize("names_session", [True, False])
def test_a_conversation_is_at_home_while_gateways_leave_and_join(
    installation: Installation, gateways: None, key: str, names_session: bool
) -> None:
    """One gateway leaves after the second turn; the rest and a new gateway serve the last two."""
    gone: list[str] = []

    def before_turn(turn: int) -> None:
        if turn == 2:
            pods = installation.pods("gateway")
            gone.append(pods[0].name)
            installation.kubectl("-n", pods[0].namespace, "delete", "pod", gone[0], "--wait=false")
        if turn == 3:
            wait_until("another has joined", lambda: _is_whole(installation, gone[0]), _ROLLED_S, every_s=1.0)

    kind = f"joins-{'sessions' if names_session else 'nameless'}"
    with installation.client(key) as client:
        at_home, _ = talked(
            client, installation.pool, kind, names_session=names_session, words=60, before_turn=before_turn
        )  # fmt: skip
    assert at_home >= 0.99


def _is_whole(installation: Installation, gone: str) -> bool:
    names = [pod.name for pod in installation.pods("gateway")]
    return len(names) >= GATEWAYS and gone not in names


def test_the_ingress_spreads_requests(installation: Installation, gateways: None, key: str) -> None:
    """The tests above mean something only if the ingress spreads requests."""
    pods = installation.pods("gateway")
    before = {pod.name: _requests(installation, pod) for pod in pods}
    body = {"model": installation.pool, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with installation.client(key) as client:
        for _ in range(10 * len(pods)):
            assert client.post("/chat/completions", json=body).status_code == 200
    taken = {pod.name: _requests(installation, pod) - before[pod.name] for pod in pods}
    print(f"requests by gateway: {taken}")
    assert all(taken.values())


@contextmanager
def one_gateway(installation: Installation, key: str) -> Iterator[httpx.Client]:
    with installation.forwarded(installation.pods("gateway")[0], 8080) as url:
        headers = installation.headers(key)
        with httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=ANSWER_S, trust_env=False) as client:
            yield client


def _requests(installation: Installation, pod: object) -> float:
    return installation.metric(pod, 8445, "shoal_requests_total")  # type: ignore[arg-type]


def _scale(annotations: dict[str, str], bound: str) -> str:
    return annotations[f"autoscaling.knative.dev/{bound}-scale"]


def _set_scale(installation: Installation, bounds: dict[str, str]) -> None:
    annotations = {f"autoscaling.knative.dev/{name}": value for name, value in bounds.items()}
    installation.patch("ksvc/gateway", {"spec": {"template": {"metadata": {"annotations": annotations}}}})
