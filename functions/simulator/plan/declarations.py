"""Declared pools: the checked InferenceService, and what KServe's kind adds.

`functions.api` reads of KServe's kind only what the platform obeys. A simulation also asks for accelerators, which
stand in `nodeSelector` and `resources`; so the document itself is kept beside the object. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from functions.api.ids import PoolName
from functions.api.kinds.inference_service import InferenceService, last_argument, parse_tokens
from functions.api.loader import Loaded


@dataclass(frozen=True, slots=True)
class PoolDeclaration:
    pool: PoolName
    service: InferenceService
    document: Mapping[str, Any]

    @property
    def args(self) -> tuple[str, ...]:
        model = self.service.spec.predictor.model
        return model.args if model is not None else ()

    def argument(self, option: str) -> str | None:
        return last_argument(self.args, option)

    def tokens(self, option: str) -> int | None:
        """A number of an argument, as vLLM reads it; None where it is not there or no number."""
        text = self.argument(option)
        return parse_tokens(text) if text is not None else None

    def environment(self, name: str) -> str | None:
        model = self.service.spec.predictor.model
        return next((each.value for each in model.env if each.name == name), None) if model is not None else None

    def at(self, *path: str) -> Any:
        """What the document has there; None where it has nothing."""
        found: Any = self.document
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


def declarations_of(loaded: Loaded) -> tuple[PoolDeclaration, ...]:
    """By pool; services that are no pool of ours are left out."""
    found = [
        PoolDeclaration(PoolName(declared.value.pool), declared.value, declared.document.tree().plain())
        for declared in loaded.of(InferenceService)
        if declared.value.pool is not None
    ]
    return tuple(sorted(found, key=lambda declaration: declaration.pool))


def arguments_of(declaration: PoolDeclaration) -> dict[str, str]:
    """Every option with its last value; `on` for one that stands alone."""
    found: dict[str, str] = {}
    args = declaration.args
    for index, argument in enumerate(args):
        if not argument.startswith("--"):
            continue
        name, equals, attached = argument.partition("=")
        follows = args[index + 1] if index + 1 < len(args) and not args[index + 1].startswith("--") else None
        found[name.replace("_", "-")] = attached if equals else follows if follows is not None else "on"
    return found


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every scalar of a document with its path; list items by their place."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from leaves(child, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from leaves(child, (*path, str(index)))
    else:
        yield path, value


def engine_changes(was: Sequence[PoolDeclaration], is_: Sequence[PoolDeclaration]) -> Iterator[str]:
    """What a change does to engines, in words: a snapshot does not have their arguments."""
    old = {each.pool: each for each in was}
    for after in is_:
        before = old.get(after.pool)
        if before is None:
            continue
        former, present = arguments_of(before), arguments_of(after)
        for option in sorted({*former, *present}):
            if former.get(option) != present.get(option):
                yield f"pool {after.pool}: {option} {former.get(option, 'unset')} -> {present.get(option, 'unset')}"
