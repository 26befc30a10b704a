"""Consistency of several objects: duplicate names, and references to missing objects.

    for problem in consistency.problems(objects, complete=True): ...

`complete` is True if every document could be read. Otherwise a missing reference is not reported, because its
target may be in the broken document.

Each check is a generator over `Everything`, so that problems beyond the limit are never located. A new check is a
function here or in one of the neighbours; a contradiction within one object is reported by its kind's `findings`.
"""

from collections.abc import Iterator, Sequence

from functions.api.consistency import fallbacks, pools, references
from functions.api.consistency.everything import Everything, sorted_out
from functions.api.declared import Declared
from functions.api.kinds.catalogue import AnyObject
from functions.api.problems import Problem

__all__ = ["Everything", "problems"]


def problems(objects: Sequence[Declared[AnyObject]], *, complete: bool) -> Iterator[Problem]:
    """Yield every problem between the objects. Unless they are `complete`, only those of names and doubles: references
    to other objects are not checked."""
    everything = sorted_out(objects)
    yield from references.name_problems(objects, everything)
    yield from fallbacks.doubles(everything)
    yield from fallbacks.scaling_doubles(everything)
    if complete:
        yield from references.reference_problems(everything)
        yield from references.model_problems(everything)
        yield from fallbacks.scaling_problems(everything)
        yield from fallbacks.problems(everything)
        yield from pools.problems(everything)
