"""The marker `soak`, and parametrizations that run a sample in `make test` and the rest in `make soak`.

`make test` runs every test without the marker, `make soak` every test with it, so each test is in exactly one. A loop
over many kill points, seeds or requests is one test whose step is a parameter: a sample for every change, and all of it
before a release.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int) -> pytest.MarkDecorator:
    """Parametrize a loop over kill points by `every`: each `step`-th in `make test`, and each one in soak."""
    return pytest.mark.parametrize(
        "every", [pytest.param(step, id=f"every-{step}"), pytest.param(1, id="each", marks=pytest.mark.soak)]
    )


def sampled(values: Iterable[Any], *, keep: Iterable[Any], each_is_several: bool = False) -> list[Any]:
    """Return parameters of which `keep` run in `make test` and the others in soak. Each may be a tuple of several."""
    kept = list(keep)

    def soaked(value: Any) -> Any:
        return pytest.param(*value if each_is_several else (value,), marks=pytest.mark.soak)

    found = [value if value in kept else soaked(value) for value in values]
    assert sum(value in kept for value in found) == len(kept), "what is to be kept is among the values"
    return found
