"""Secrets of an installation: which there are, and what is to be made of them. Pure: what exists in, steps out.

    made     nobody has it, and its content is random: internal token, passwords of bus and trace store, pepper
    given    its content is from outside: credentials of the store, the database's password, the git token
    copied   both namespaces use it, and one has it
    follows  from another: the roles' credentials, from the internal token; the bus's users, from its password

What else exists is kept, whatever was given: a new pepper would make every tenant's key worthless, a new token would
part processes that run (`turned` changes that in steps). Two copies that differ are said and left to a person. A Secret
without its key is like one with another content.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from functions.cli.cluster.access import MODELS, SYSTEM
from functions.fleet.bus_users import BusUser, login, server_users
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


_ROLES: Mapping[Role, str] = {"gateway": SYSTEM, "controller": SYSTEM, "agent": MODELS}
_USERS: Mapping[BusUser, str] = {"gateway": SYSTEM, "registry": SYSTEM, "agent": MODELS}


def _document(role: Role, token: str) -> bytes:
    return document(role, tokens_in(token))


def _login(user: BusUser, password: str) -> bytes:
    return login(user, password.strip()).encode()


def _bus_users(password: str) -> bytes:
    return "\n".join([*server_users(password.strip()), ""]).encode()


TOKEN_SECRET, TOKEN_KEY = "shoal-internal-token", "internal-token"
BUS_SECRET, BUS_KEY = "shoal-bus-password", "bus-password"
_TOKEN = (TOKEN_SECRET, TOKEN_KEY)


@dataclass(frozen=True, slots=True)
class Follower:
    """A Secret whose content follows from another's, in the system's namespace."""

    place: Where
    key: str
    of: tuple[str, str]  # name, key
    make: Callable[[str], bytes]


FOLLOWERS = (
    *(
        Follower((namespace, f"shoal-{role}-credentials"), "credentials.json", _TOKEN, partial(_document, role))
        for role, namespace in _ROLES.items()
    ),
    *(
        Follower((namespace, f"shoal-{user}-bus"), BUS_KEY, (BUS_SECRET, BUS_KEY), partial(_login, user))
        for user, namespace in _USERS.items()
    ),
    Follower((SYSTEM, "shoal-bus-users"), "users.acl", (BUS_SECRET, BUS_KEY), _bus_users),
)
# Up to version 0.1 agents had what opens everything; who has replaced it.
_UNUSED: Mapping[Where, Where] = {
    (MODELS, TOKEN_SECRET): (MODELS, "shoal-agent-credentials"),
    (MODELS, BUS_SECRET): (MODELS, "shoal-agent-bus"),
}

KINDS = (
    SecretKind(TOKEN_SECRET, TOKEN_KEY, (SYSTEM,), "random"),
    SecretKind(BUS_SECRET, BUS_KEY, (SYSTEM,), "random"),
    SecretKind("shoal-trace-store", "trace-store-password", (SYSTEM,), "random"),
    SecretKind("shoal-trace-store-reader", "trace-store-password", (SYSTEM,), "random"),
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
    return [*steps, *_following(there, steps)]


def places() -> list[Where]:
    """Of all Secrets that `plan` looks at."""
    return [*(place for kind in KINDS for place in kind.places), *(each.place for each in FOLLOWERS), *_UNUSED]


def turned(content: bytes, turn: Turn, fresh: bytes) -> bytes:
    """The internal token's next content: a new one is added, then shown, then the old one dropped.

    Raises CredentialsUnusable where the content is not as the turn needs it.
    """
    tokens = tokens_in(content.decode())
    if (turn == "add") != (len(tokens) == 1):
        raise CredentialsUnusable("there are two already: show, or drop" if turn == "add" else "add another one first")
    after = {"add": (*tokens, fresh.decode()), "show": tokens[::-1], "drop": tokens[:1]}[turn]
    return "\n".join(after).encode()


def _following(there: Mapping[Where, Mapping[str, bytes]], steps: Sequence[SecretStep]) -> list[SecretStep]:
    """What follows from others, which may be about to be made."""
    made = {(step.namespace, step.name): {step.key: step.value} for step in steps if step.value}
    found = [_follow(each, {**there, **made}, there.get(each.place)) for each in FOLLOWERS]
    for old, new in _UNUSED.items():
        if old in there and new in there:
            words = f"agents have {new[1]}: delete it once every pool has been replaced"
            found.append(SecretStep("unused", *old, next(iter(there[old]), ""), words=words))
    return found


def _follow(
    follower: Follower, there: Mapping[Where, Mapping[str, bytes]], held: Mapping[str, bytes] | None
) -> SecretStep:
    name, key = follower.of
    try:
        wanted = follower.make(there[SYSTEM, name][key].decode())
    except (KeyError, CredentialsUnusable, UnicodeDecodeError) as error:
        words = f"it follows from {SYSTEM}/{name}, which cannot be used: {error}"
        return SecretStep("clash", *follower.place, follower.key, words=words)
    if held is None:
        return SecretStep("make", *follower.place, follower.key, wanted)
    if held.get(follower.key) == wanted:
        return SecretStep("keep", *follower.place, follower.key)
    return SecretStep("renew", *follower.place, follower.key, wanted, f"it did not follow from {name}")


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
