"""Adapters are checked against the facts that the base's folder holds now."""

import logging
import os
from pathlib import Path, PurePosixPath

import pytest

from functions.registry.ingesting import Bases
from tests.registry.base_folders import MODULE, put_facts


def width_of(bases: Bases, folder: str) -> int:
    known = bases.find_facts("chat", PurePosixPath(folder))
    assert known is not None
    return known.facts.modules[MODULE][0]


def test_pool_moved_to_another_folder_gets_its_facts(tmp_path: Path) -> None:
    put_facts(tmp_path, "old", 576)
    put_facts(tmp_path, "new", 960)
    bases = Bases(tmp_path)
    assert (width_of(bases, "old"), width_of(bases, "new"), width_of(bases, "old")) == (576, 960, 576)


def test_files_changed_in_place_are_read_again(tmp_path: Path) -> None:
    file = put_facts(tmp_path, "base", 576)
    bases = Bases(tmp_path)
    before = bases.find_facts("chat", PurePosixPath("base"))
    assert before is not None
    assert bases.find_facts("chat", PurePosixPath("base")) is before  # nothing changed: nothing is read
    at_ns = file.stat().st_mtime_ns
    put_facts(tmp_path, "base", 960)
    os.utime(file, ns=(at_ns + 1, at_ns + 1))
    after = bases.find_facts("chat", PurePosixPath("base"))
    assert after is not None
    assert after.facts.modules[MODULE] == (960, 960)
    assert after.fingerprint != before.fingerprint


def test_missing_base_is_searched_again(tmp_path: Path) -> None:
    bases = Bases(tmp_path)
    assert bases.find_facts("chat", PurePosixPath("base")) is None
    assert bases.find_facts("chat", PurePosixPath("../base")) is None
    assert Bases(None).find_facts("chat", PurePosixPath("base")) is None
    put_facts(tmp_path, "base", 576)
    assert width_of(bases, "base") == 576


def test_missing_facts_are_logged_once_per_absence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bases, folder = Bases(tmp_path), PurePosixPath("base")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert bases.find_facts("chat", folder) is None
        assert len(caplog.messages) == 1
        assert "adapters over chat are not checked" in caplog.messages[0]
        assert "shoal base facts" in caplog.messages[0]
        file = put_facts(tmp_path, "base", 576)
        assert bases.find_facts("chat", folder) is not None
        file.write_bytes(b"{}")
        assert bases.find_facts("chat", folder) is None
        assert len(caplog.messages) == 2
    assert "not a document of base facts" in caplog.messages[1]
