"""Secrets of an installation: which there are, and what is to be made of them. Pure: what exists in, steps out.

    made     nobody has it, and its content is random: internal token, passwords of bus and trace store, pepper
    given    its content is from outside: credentials of the store, the database's password, the git token
    copied   both namespaces use it, and one has it

What exists is kept, whatever was given: a new pepper would make every tenant's key worthless, a new token would part
processes that run. Two copies that differ are said and left to a person. A Secret without its key is like one with
another content.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from functions.cli.cluster.access import MODELS, SYSTEM

Where = tuple[str, str]  # namespace of the role (`shoal`, `shoal-models`), name
Do = Literal["keep", "make", "copy", "give", "miss", "clash"]


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


KINDS = (
    SecretKind("shoal-internal-token", "internal-token", (SYSTEM, MODELS), "random"),
    SecretKind("shoal-bus-password", "bus-password", (SYSTEM, MODELS), "random"),
    SecretKind("shoal-trace-store", "trace-store-password", (SYSTEM,), "random"),
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
    return [step for kind in kinds for step in _steps(kind, there, given, random)]


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
