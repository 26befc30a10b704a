"""Consistency of several objects: names that occur twice, and references to what is not there.

    for problem in consistency.problems(objects, complete=True): ...

`complete` says that every document could be read. Where one could not, a reference to nothing is no finding: what it
names may stand in the very document that is broken.

Each check is a generator over `Everything`, so that nobody pays for placing problems that nobody will read. A new
check is a function here or in one of the neighbours; what an object contradicts in itself is its kind's `findings`.
"""

from collections.abc import Iterator, Sequence

from functions.api.consistency import fallbacks, pools, references
from functions.api.consistency.everything import Everything, sorted_out
from functions.api.declared import Declared
from functions.api.kinds.catalogue import AnyObject
from functions.api.problems import Problem

__all__ = ["Everything", "problems"]


def problems(objects: Sequence[Declared[AnyObject]], *, complete: bool) -> Iterator[Problem]:
    """Everything that is wrong between the objects."""
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
