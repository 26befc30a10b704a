"""Is there anything to write? The server's own answer to a dry run, against what is there.

Comparing our body with the live object would see every default that the server adds as drift; comparing the dry run's
result does not. Equal means: the same content but for what each write changes by itself, and the same set of fields
under our name, so that fields which we no longer declare are let go even where somebody else keeps their value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from functions.controller.kubernetes.ownership import fields_applied_by
from functions.controller.kubernetes.words import FIELD_MANAGER

_MOVES_BY_ITSELF = frozenset({"managedFields", "resourceVersion", "generation", "creationTimestamp", "selfLink"})
_LISTED = 5


def is_converged(live: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether applying would change nothing."""
    same_fields = fields_applied_by(live, FIELD_MANAGER) == fields_applied_by(result, FIELD_MANAGER)
    return same_fields and _content(live) == _content(result)


def dropped(body: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """Key paths that were sent and are not in the result: fields that the server does not know and passed over.

    A server before 1.25 has no strict field validation, and forgets what it does not know without a word. What is empty
    may go: KServe's webhook writes objects anew, without empty texts, zeros and lists.
    """
    return [path for path, _ in zip(_missing(body, result, ""), range(_LISTED), strict=False)]


def _content(value: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {key: item for key, item in value["metadata"].items() if key not in _MOVES_BY_ITSELF}
    return {**{key: item for key, item in value.items() if key != "status"}, "metadata": metadata}


def _missing(sent: Any, got: Any, path: str) -> Iterator[str]:
    if isinstance(sent, dict):
        for key, value in sent.items():
            here = f"{path}.{key}" if path else key
            if not isinstance(got, dict) or key not in got:
                if value:
                    yield here
            else:
                yield from _missing(value, got[key], here)
    elif isinstance(sent, list) and isinstance(got, list) and len(sent) == len(got):
        for index, (value, other) in enumerate(zip(sent, got, strict=True)):
            yield from _missing(value, other, f"{path}[{index}]")
