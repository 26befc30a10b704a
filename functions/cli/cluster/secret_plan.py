"""Secrets of an installation: which there are, and what is to be made of them. Pure: what exists in, steps out.

    made     nobody has it, and its content is random: the internal token, the bus's password, the pepper
    given    its content is from outside: credentials of the store, the database's password, the git token
    copied   both namespaces use it, and one has it
    follows  from another: the credentials of the roles, from the internal token; written anew when that changes

What else exists is kept, whatever was given: a new pepper would make every tenant's key worthless, a new token would
part processes that run (`turned` changes that in steps). Two copies that differ are said and left to a person. A Secret
without its key is like one with another content.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from functions.cli.cluster.access import MODELS, SYSTEM
from functions.fleet.role_credentials import CredentialsUnusable, Role, document, tokens_in

Where = tuple[str, str]  # namespace of the role (`shoal`, `shoal-models`), name
Do = Literal["keep", "make", "copy", "give", "miss", "clash", "renew", "unused"]
Turn = Literal["add", "show", "drop"]


@dataclass(frozen=True, slots=True)
class SecretKind:
    """One content, in one or both namespaces."""

    name: str
    key: str
    namespaces: tuple[str, ...]
    content: str  # the word by which it is given (`--registry-s3`), or "random"
    optional: bool = False

    @property
    def places(self) -> list[Where]:
        return [(namespace, self.name) for namespace in self.namespaces]


TOKEN_SECRET, TOKEN_KEY = "shoal-internal-token", "internal-token"
CREDENTIALS_KEY = "credentials.json"
ROLE_SECRETS: Mapping[Role, Where] = {
    "gateway": (SYSTEM, "shoal-gateway-credentials"),
    "controller": (SYSTEM, "shoal-controller-credentials"),
    "agent": (MODELS, "shoal-agent-credentials"),
}
_TOKEN_OF_AGENTS: Where = (MODELS, TOKEN_SECRET)  # up to version 0.1 they had it too

KINDS = (
    SecretKind(TOKEN_SECRET, TOKEN_KEY, (SYSTEM,), "random"),
    SecretKind("shoal-bus-password", "bus-password", (SYSTEM, MODELS), "random"),
    SecretKind("shoal-pepper", "pepper", (SYSTEM,), "random"),
    SecretKind("shoal-s3", "s3.json", (SYSTEM, MODELS), "read-s3"),
    SecretKind("shoal-registry-s3", "s3.json", (SYSTEM,), "registry-s3"),
    SecretKind("shoal-gateway-s3", "s3.json", (SYSTEM,), "gateway-s3"),
    SecretKind("shoal-registry-database", "password", (SYSTEM,), "database-password"),
    SecretKind("shoal-git", "token", (SYSTEM,), "git-token", optional=True),
    SecretKind("shoal-regions-token", "token", (SYSTEM,), "regions-token", optional=True),
    SecretKind("shoal-git-webhook", "secret", (SYSTEM,), "git-webhook-secret", optional=True),
)


@dataclass(frozen=True, slots=True)
class SecretStep:
    do: Do
    namespace: str
    name: str
    key: str
    value: bytes = b""  # of what is to be created
    words: str = ""

    def __repr__(self) -> str:  # its content must not reach a log
        return f"SecretStep({self.do} {self.namespace}/{self.name})"


def plan(
    there: Mapping[Where, Mapping[str, bytes]],
    given: Mapping[str, bytes],
    random: Callable[[], bytes],
    kinds: Sequence[SecretKind] = KINDS,
) -> list[SecretStep]:
    """What to do for each Secret, by namespace and name. `given` is by the word of `SecretKind.content`, or the name of
    a random one's key where it comes from elsewhere (a pepper that regions share)."""
    steps = [step for kind in kinds for step in _steps(kind, there, given, random)]
    return [*steps, *_roles(there, steps)]


def places() -> list[Where]:
    """Of all Secrets that `plan` looks at."""
    return [*(place for kind in KINDS for place in kind.places), *ROLE_SECRETS.values(), _TOKEN_OF_AGENTS]


def turned(content: bytes, turn: Turn, fresh: bytes) -> bytes:
    """The internal token's next content: a new one is added, then shown, then the old one dropped.

    Raises CredentialsUnusable where the content is not as the turn needs it.
    """
    tokens = tokens_in(content.decode())
    if (turn == "add") != (len(tokens) == 1):
        raise CredentialsUnusable("there are two already: show, or drop" if turn == "add" else "add another one first")
    after = {"add": (*tokens, fresh.decode()), "show": tokens[::-1], "drop": tokens[:1]}[turn]
    return "\n".join(after).encode()


def _roles(there: Mapping[Where, Mapping[str, bytes]], steps: Sequence[SecretStep]) -> list[SecretStep]:
    """The roles' credentials, where there is a token for them to follow from."""
    made = next((step.value for step in steps if step.name == TOKEN_SECRET), b"")
    token = made or there.get((SYSTEM, TOKEN_SECRET), {}).get(TOKEN_KEY, b"")
    found = [_role(role, token, there.get(where), *where) for role, where in ROLE_SECRETS.items()]
    if _TOKEN_OF_AGENTS in there and there.get(ROLE_SECRETS["agent"]):
        words = "agents have credentials of their own: delete it once every pool has been replaced"
        found.append(SecretStep("unused", *_TOKEN_OF_AGENTS, TOKEN_KEY, words=words))
    return found


def _role(role: Role, token: bytes, held: Mapping[str, bytes] | None, namespace: str, name: str) -> SecretStep:
    try:
        wanted = document(role, tokens_in(token.decode()))
    except (CredentialsUnusable, UnicodeDecodeError) as error:
        words = f"it follows from {SYSTEM}/{TOKEN_SECRET}, which cannot be used: {error}"
        return SecretStep("clash", namespace, name, CREDENTIALS_KEY, words=words)
    if held is None:
        return SecretStep("make", namespace, name, CREDENTIALS_KEY, wanted)
    if held.get(CREDENTIALS_KEY) == wanted:
        return SecretStep("keep", namespace, name, CREDENTIALS_KEY)
    return SecretStep("renew", namespace, name, CREDENTIALS_KEY, wanted, "it did not follow from the internal token")


def _steps(
    kind: SecretKind,
    there: Mapping[Where, Mapping[str, bytes]],
    given: Mapping[str, bytes],
    random: Callable[[], bytes],
) -> list[SecretStep]:
    held = {place: there[place].get(kind.key) for place in kind.places if place in there}
    contents = {value for value in held.values() if value is not None}
    word = kind.key if kind.content == "random" else kind.content
    offered = given.get(word)
    if any(value is None for value in held.values()) or len(contents) > 1:
        return [_clash(kind, place, held) for place in kind.places]
    new = contents.copy().pop() if contents else offered
    do: Do = "copy" if contents else "give"
    if new is None and kind.content == "random":
        new, do = random(), "make"
    differs = offered is not None and bool(contents) and offered not in contents
    kept = f"--{word} differs and is not used: delete the Secret first" if differs else ""
    steps = []
    for namespace, name in kind.places:
        if (namespace, name) in held:
            steps.append(SecretStep("keep", namespace, name, kind.key, words=kept))
        elif new is not None:
            steps.append(SecretStep(do, namespace, name, kind.key, new))
        elif not kind.optional:
            steps.append(SecretStep("miss", namespace, name, kind.key, words=f"give it with --{word} FILE"))
    return steps


def _clash(kind: SecretKind, place: Where, held: Mapping[Where, bytes | None]) -> SecretStep:
    if place in held and held[place] is None:
        words = f"it has no key {kind.key}: delete it, and call this again"
    elif len(held) > 1 and all(value is not None for value in held.values()):
        words = "the copies of both namespaces differ: delete the wrong one, and call this again"
    else:
        words = f"the other namespace's has no key {kind.key}"
    return SecretStep("clash", *place, kind.key, words=words)
