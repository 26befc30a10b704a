"""Replay of the corpus of every fuzz target, as a regression test."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.corpora import KEPT_MAX_BYTES, KEPT_MAX_FILES, folder_of, name_of, target_names
from tests.fuzz.inputs import MARK, grown, segments


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable logging during a test, because invalid inputs log thousands of messages; enable it for later tests."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", target_names())
def test_corpus_inputs_pass(target: str) -> None:
    check = importlib.import_module(f"tests.fuzz.targets.{target}").check
    for file in kept(target):
        content = file.read_bytes()
        try:
            check(content)
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz.run {target} --replay {file}") from error


@pytest.mark.parametrize("target", target_names())
def test_corpora_stay_small(target: str) -> None:
    files = kept(target)
    assert 1 <= len(files) <= KEPT_MAX_FILES
    assert all(file.stat().st_size <= KEPT_MAX_BYTES and file.name == name_of(file.read_bytes()) for file in files)


def test_a_mark_stands_for_a_repetition() -> None:
    assert grown(b"x" + MARK + b"\x03\x02aby") == b"x" + b"ab" * 8 + b"y"
    assert grown(b"plain") == b"plain"
    assert len(grown((MARK + b"\xff\xff" + b"a" * 255) * 9)) == 512 * 1024


def test_segments_have_all_bytes() -> None:
    for size in (0, 1, 7):
        assert b"".join(segments(b"abcdefghij", size)) == b"abcdefghij"


def kept(target: str) -> list[Path]:
    return sorted(folder_of(target).iterdir())
