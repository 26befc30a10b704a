"""Declared pools: the checked InferenceService together with its document.

`functions.api` reads only the fields of KServe's kind that the platform obeys. A simulation also needs the
accelerators in `nodeSelector` and `resources`, so the document is stored with the object. Pure.
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
        """Return an argument's number as vLLM reads it, or None if it is missing or not a number."""
        text = self.argument(option)
        return parse_tokens(text) if text is not None else None

    def environment(self, name: str) -> str | None:
        model = self.service.spec.predictor.model
        return next((each.value for each in model.env if each.name == name), None) if model is not None else None

    def at(self, *path: str) -> Any:
        """Return the document's value at a path, or None."""
        found: Any = self.document
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found


def declarations_of(loaded: Loaded) -> tuple[PoolDeclaration, ...]:
    """Return the declared pools by name, without InferenceServices that are not pools."""
    found = [
        PoolDeclaration(PoolName(declared.value.pool), declared.value, declared.document.tree().plain())
        for declared in loaded.objects_of(InferenceService)
        if declared.value.pool is not None
    ]
    return tuple(sorted(found, key=lambda declaration: declaration.pool))


def arguments_of(declaration: PoolDeclaration) -> dict[str, str]:
    """Return every option, with dashes for underscores, and its last value; `on` for an option without a value."""
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
    """Yield every scalar of a document with its path; list items by index."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from leaves(child, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from leaves(child, (*path, str(index)))
    else:
        yield path, value


def engine_changes(was: Sequence[PoolDeclaration], is_: Sequence[PoolDeclaration]) -> Iterator[str]:
    """Yield descriptions of changed engine arguments, which snapshots do not contain, of pools that are on both
    sides."""
    old = {each.pool: each for each in was}
    for after in is_:
        before = old.get(after.pool)
        if before is None:
            continue
        former, present = arguments_of(before), arguments_of(after)
        for option in sorted({*former, *present}):
            if former.get(option) != present.get(option):
                yield f"pool {after.pool}: {option} {former.get(option, 'unset')} -> {present.get(option, 'unset')}"
