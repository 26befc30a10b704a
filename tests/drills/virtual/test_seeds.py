"""Seeds of faults on the real gateway in virtual time. All thousand: `python -m tests.drills.virtual --seeds 1000`."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.drills.virtual.faults import KINDS
from tests.drills.virtual.mutants import MUTANTS, Mutant
from tests.drills.virtual.seed import Verdict, run_seed, workplace
from tests.soak import sampled

_SEEDS, _AT_A_TIME = 40, 10
_BROKEN_ONCE = (15, 34, 403, 950, 967)  # seeds that have found a bug: they always run


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


@cache
def _run(seed: int, place: Path) -> Verdict:
    """Run the seed once for all tests that use it: it takes a second and more."""
    return run_seed(seed, place)


def _verdict(seed: int, place: Path) -> Verdict:
    verdict = _run(seed, place)
    told = "\n".join(verdict.breaches)
    again = f"PYTHONHASHSEED=0 python -m tests.drills.virtual --seed {seed} -v"
    assert not verdict.breaches, f"seed {seed} breaks invariants; see `{again}`\n{told}"
    return verdict


@pytest.mark.parametrize("first", sampled(range(0, _SEEDS, _AT_A_TIME), keep=[0]))
def test_no_seed_breaks_an_invariant(first: int, place: Path) -> None:
    for seed in range(first, first + _AT_A_TIME):
        _verdict(seed, place)


@pytest.mark.parametrize("seed", _BROKEN_ONCE)
def test_bugs_found_by_seeds_stay_fixed(seed: int, place: Path) -> None:
    _verdict(seed, place)


def test_same_seed_gives_the_same_run(place: Path) -> None:
    for seed in (3, 4):
        former, later = _run(seed, place), run_seed(seed, place)
        different = next((pair for pair in zip(former.log, later.log, strict=False) if pair[0] != pair[1]), None)
        assert former.hash == later.hash, f"seed {seed} goes two ways: {different}"


def test_seeds_differ_and_cover_endings_and_faults(place: Path) -> None:
    verdicts = [_run(seed, place) for seed in range(_AT_A_TIME)]
    assert len({verdict.hash for verdict in verdicts}) == len(verdicts)
    endings = sum((Counter(verdict.endings) for verdict in verdicts), Counter[str]())
    assert min(endings[each] for each in ("streamed", "answered", "refused", "left", "broken")) > 0, endings
    assert endings["streamed"] > sum(endings.values()) / 4, endings
    struck = {kind for verdict in verdicts for kind in verdict.faults}
    assert len(struck) > len(KINDS) / 2, struck


@pytest.mark.parametrize("mutant", sampled(MUTANTS, keep=MUTANTS[:4]), ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_product_mutant_is_detected(mutant: Mutant, place: Path) -> None:
    seen: set[str] = set()
    for seed in mutant.seeds:
        with patch.object(mutant.owner, mutant.function, mutant.mutate(getattr(mutant.owner, mutant.function))):
            breaches = run_seed(seed, place).breaches
        seen.update(breach.split(":")[0] for breach in breaches)
        if any(breach.startswith(mutant.seen_by) for breach in breaches):
            return
    pytest.fail(f"{mutant.name} was not seen by {mutant.seen_by} in seeds {mutant.seeds}, only by {seen or 'nothing'}")
