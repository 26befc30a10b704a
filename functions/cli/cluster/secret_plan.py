"""Plan for the Secrets of an installation. Pure: existing Secrets in, steps out.

    made     random content, if the Secret is missing: internal token, passwords of bus and trace store, pepper
    given    content from outside: credentials of the store, the database's password, the git token
    copied   from the other namespace, if both namespaces use the Secret
    derived  from another Secret: the roles' credentials from the internal token, the bus's users from its password

An existing Secret that is not derived is kept, even if a file was given. A new pepper would invalidate every tenant's
key, and a new token would separate running processes (a rotation replaces it in steps). Copies that differ are reported
and left to the operator. So is a Secret that lacks its key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from functions.cli.cluster.access import MODELS, SYSTEM
from functions.fleet.bus_users import BusUser, login, server_users
from functions.fleet.role_credentials import CredentialsUnusable, Role, document, tokens_in

Where = tuple[str, str]  # (default namespace, name); the default namespace is `shoal` or `shoal-models`
Do = Literal["keep", "make", "copy", "give", "miss", "clash", "renew", "unused"]
Turn = Literal["add", "show", "drop"]


@dataclass(frozen=True, slots=True)
class SecretKind:
    """A Secret with the same content in one or both namespaces."""

    name: str
    key: str
    namespaces: tuple[str, ...]
    content: str  # name of the option that gives the content ("registry-s3"), or "random"
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
    """A Secret whose content is derived from a Secret in the system namespace."""

    place: Where
    key: str
    of: tuple[str, str]  # (name, key) of the source
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
# Secrets of agents up to version 0.1, which permitted everything, and the Secrets that replaced them.
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
    value: bytes = b""  # content to write; empty: nothing to write
    words: str = ""

    def __repr__(self) -> str:  # keeps the content out of logs
        return f"SecretStep({self.do} {self.namespace}/{self.name})"


def plan(
    there: Mapping[Where, Mapping[str, bytes]],
    given: Mapping[str, bytes],
    random: Callable[[], bytes],
    kinds: Sequence[SecretKind] = KINDS,
) -> list[SecretStep]:
    """Return the step for each Secret.

    Keys of `given` are values of `SecretKind.content`, or the key of a random Secret, such as a pepper of all regions.
    """
    steps = [step for kind in kinds for step in _steps(kind, there, given, random)]
    return [*steps, *_following(there, steps)]


def places() -> list[Where]:
    """Return namespace and name of all Secrets that `plan` needs."""
    return [*(place for kind in KINDS for place in kind.places), *(each.place for each in FOLLOWERS), *_UNUSED]


def rotated_content(content: bytes, turn: Turn, fresh: bytes) -> bytes:
    """Return the internal token's next content. Turns: add a new token, send the new one first, drop the old one.

    Raise CredentialsUnusable if the number of tokens does not fit the turn.
    """
    tokens = tokens_in(content.decode())
    if (turn == "add") != (len(tokens) == 1):
        raise CredentialsUnusable(
            "there are two tokens: use show or drop" if turn == "add" else "there is one token: use add first"
        )
    after = {"add": (*tokens, fresh.decode()), "show": tokens[::-1], "drop": tokens[:1]}[turn]
    return "\n".join(after).encode()


def _following(there: Mapping[Where, Mapping[str, bytes]], steps: Sequence[SecretStep]) -> list[SecretStep]:
    """Return the steps for derived Secrets, whose sources may be created by `steps`, and for unused ones."""
    made = {(step.namespace, step.name): {step.key: step.value} for step in steps if step.value}
    found = [_follow(each, {**there, **made}, there.get(each.place)) for each in FOLLOWERS]
    for old, new in _UNUSED.items():
        if old in there and new in there:
            words = f"agents use {new[1]}: delete it once every pool has been replaced"
            found.append(SecretStep("unused", *old, next(iter(there[old]), ""), words=words))
    return found


def _follow(
    follower: Follower, there: Mapping[Where, Mapping[str, bytes]], held: Mapping[str, bytes] | None
) -> SecretStep:
    name, key = follower.of
    try:
        wanted = follower.make(there[SYSTEM, name][key].decode())
    except (KeyError, CredentialsUnusable, UnicodeDecodeError) as error:
        words = f"it is derived from {SYSTEM}/{name}, which cannot be used: {error}"
        return SecretStep("clash", *follower.place, follower.key, words=words)
    if held is None:
        return SecretStep("make", *follower.place, follower.key, wanted)
    if held.get(follower.key) == wanted:
        return SecretStep("keep", *follower.place, follower.key)
    return SecretStep("renew", *follower.place, follower.key, wanted, f"it did not match {name}")


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
            steps.append(SecretStep("miss", namespace, name, kind.key, words=f"use --{word} FILE"))
    return steps


def _clash(kind: SecretKind, place: Where, held: Mapping[Where, bytes | None]) -> SecretStep:
    if place in held and held[place] is None:
        words = f"it has no key {kind.key}: delete it, and run this again"
    elif len(held) > 1 and all(value is not None for value in held.values()):
        words = "the copies of both namespaces differ: delete the wrong one, and run this again"
    else:
        words = f"the other namespace's copy has no key {kind.key}"
    return SecretStep("clash", *place, kind.key, words=words)
