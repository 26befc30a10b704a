"""What `make test` leaves to `make soak`: the marker `soak`, and how a test says that it goes on where others sample.

`make test` is every test without the marker, `make soak` every test with it; no test is in both or in neither. A loop
over many kill points, seeds or requests is one test that takes its pace as a parameter: a sample for every change, all
of it before a release.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int) -> pytest.MarkDecorator:
    """Parametrizes a loop over kill points by `every`: each `step`-th in `make test`, each single one in soak."""
    return pytest.mark.parametrize(
        "every", [pytest.param(step, id=f"every-{step}"), pytest.param(1, id="each", marks=pytest.mark.soak)]
    )


def sampled(values: Iterable[Any], *, keep: Iterable[Any], each_is_several: bool = False) -> list[Any]:
    """Parameters of which `keep` run in `make test` and the others in soak; each may be a tuple of several."""
    kept = list(keep)

    def soaked(value: Any) -> Any:
        return pytest.param(*value if each_is_several else (value,), marks=pytest.mark.soak)

    found = [value if value in kept else soaked(value) for value in values]
    assert sum(value in kept for value in found) == len(kept), "what is to be kept is among the values"
    return found
