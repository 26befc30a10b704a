"""The recorder of decisions: one time an event, a bounded file that is its owner's, and nothing where it is off."""

import json
import stat
from pathlib import Path

import pytest

from functions.gateway.decision_recorder import DecisionRecorder
from functions.gateway.server import StartFailed, _recorder
from functions.gateway.settings import GatewaySettings
from tests.gateway.world import Clock, World


def test_an_event_and_all_it_leads_to_have_one_time(tmp_path: Path) -> None:
    clock = Clock()
    recorder = DecisionRecorder(tmp_path / "file", 10_000, clock)
    with recorder.one_event():
        clock.forward(1.0)
        recorder.note("sweep")
        with recorder.one_event(5.0):
            recorder.note("sweep")
    recorder.note("sweep")
    recorder.flush()
    times = [json.loads(line)["t"] for line in (tmp_path / "file").read_text().splitlines()]
    assert times == [1000.0, 1000.0, 1001.0]
    recorder.close()


def test_the_file_is_bounded_and_says_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "file"
    recorder = DecisionRecorder(path, 1024, Clock())
    for _ in range(100):
        recorder.note("sweep")
    recorder.flush()
    lines = path.read_text().splitlines()
    assert path.stat().st_size <= 1024
    assert len(lines) > 20
    assert json.loads(lines[-1]) == {"e": "full"}


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    DecisionRecorder(tmp_path / "file", 1024, Clock()).close()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    gateway = World().gateway
    assert type(gateway.services.admission).__name__ == "AdmissionQueues"
    assert type(gateway.services.router).__name__ == "Router"
    assert type(gateway.services.fleet).__name__ == "FleetView"


def test_a_file_that_cannot_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    settings = GatewaySettings(
        internal_token_file=tmp_path / "t",
        pepper_file=tmp_path / "p",
        snapshot_cache_file=tmp_path / "s",
        decisions_file=tmp_path / "none" / "file",
    )
    with pytest.raises(StartFailed, match="SHOAL_GATEWAY_DECISIONS_FILE: No such file or directory"):
        _recorder(settings)
    assert _recorder(settings.model_copy(update={"decisions_file": None})) is None
