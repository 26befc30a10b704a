"""Weights that an agent reports for its engine: those that the engine has read, or none."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from functions.artifacts import directories
from functions.engines.client import EngineModel
from functions.engines.errors import EngineUnreachable
from functions.fleet import heartbeat as heartbeats
from functions.replica.heartbeat_loop import compose
from functions.replica.status import AgentStatus
from functions.replica.weights import LoadedWeights
from tests.artifacts.test_base_folder import model
from tests.replica.statuses import make_status

STARTED_UNIX_S = 2_000_000_000.0  # after the times of all test files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model(tmp_path / "llama")


@pytest.fixture
def status() -> AgentStatus:
    return make_status()


@pytest.fixture
def weights(status: AgentStatus, folder: Path, tmp_path: Path) -> LoadedWeights:
    return LoadedWeights(status, folder, tmp_path / "notes", started_from(folder))


def started_from(folder: Path) -> Callable[[], Awaitable[tuple[EngineModel, ...]]]:
    async def models() -> tuple[EngineModel, ...]:
        adapter = EngineModel("acme/pirate", "/var/cache/acme", parent="llama", max_model_len_tokens=None)
        return (EngineModel("llama", str(folder), parent=None, max_model_len_tokens=None), adapter)

    return models


async def test_the_heartbeat_tells_what_the_engine_was_started_from(
    status: AgentStatus, weights: LoadedWeights, folder: Path
) -> None:
    digest = directories.write_manifest(folder)
    assert compose(status, sequence=0, sent_unix_s=0.0).weights_digest == "", "nobody has looked yet"
    await weights.detect_weights(STARTED_UNIX_S)
    sent = heartbeats.decode(heartbeats.encode(compose(status, sequence=1, sent_unix_s=0.0)))
    assert heartbeats.to_view(sent).weights == digest


async def test_an_engine_that_is_gone_has_loaded_nothing(status: AgentStatus, weights: LoadedWeights) -> None:
    await weights.detect_weights(STARTED_UNIX_S)
    assert status.weights is not None
    weights.forget()
    assert heartbeats.to_view(compose(status, sequence=0, sent_unix_s=0.0)).weights is None


async def test_a_folder_that_was_written_to_since_the_engine_started_says_nothing_of_it(
    status: AgentStatus, weights: LoadedWeights, folder: Path
) -> None:
    """Otherwise an agent that restarts beside its engine would report weights that the engine never read."""
    os.utime(folder / "model.safetensors", (STARTED_UNIX_S + 1, STARTED_UNIX_S + 1))
    await weights.detect_weights(STARTED_UNIX_S)
    assert status.weights is None


async def test_reported_weights_stay_while_the_engine_runs(
    status: AgentStatus, weights: LoadedWeights, folder: Path
) -> None:
    await weights.detect_weights(STARTED_UNIX_S)
    loaded = status.weights
    (folder / "tokenizer.json").write_text("[]")
    assert compose(status, sequence=0, sent_unix_s=0.0).weights_digest == loaded


async def test_an_agent_that_sees_no_folder_claims_nothing(status: AgentStatus, tmp_path: Path) -> None:
    await LoadedWeights(status, None, tmp_path, started_from(tmp_path)).detect_weights(None)
    await LoadedWeights(status, tmp_path / "nothing", tmp_path, started_from(tmp_path / "nothing")).detect_weights(None)
    assert status.weights is None


async def test_an_engine_that_runs_from_another_folder_is_not_told_to_have_this_one(
    status: AgentStatus, folder: Path, tmp_path: Path
) -> None:
    """Otherwise an agent updated before its engine would report the new version while the old one serves."""
    former = model(tmp_path / "former")
    await LoadedWeights(status, folder, tmp_path / "notes", started_from(former)).detect_weights(STARTED_UNIX_S)
    assert status.weights is None


@pytest.mark.parametrize("root", ["/mnt/models-of-another-container", "llama"])
async def test_a_path_that_is_not_seen_from_here_says_nothing(
    status: AgentStatus, folder: Path, tmp_path: Path, root: str
) -> None:
    await LoadedWeights(status, folder, tmp_path / "notes", started_from(Path(root))).detect_weights(STARTED_UNIX_S)
    assert status.weights is not None


async def test_an_engine_that_does_not_answer_says_nothing_of_its_folder(
    status: AgentStatus, folder: Path, tmp_path: Path
) -> None:
    async def away() -> tuple[EngineModel, ...]:
        raise EngineUnreachable("connection refused")

    await LoadedWeights(status, folder, tmp_path / "notes", away).detect_weights(STARTED_UNIX_S)
    assert status.weights is not None


def test_invalid_weights_digest_is_refused() -> None:
    heartbeat = compose(make_status(), sequence=0, sent_unix_s=0.0)
    message = heartbeats.encode(heartbeat).replace(b'"weights_digest":""', b'"weights_digest":"sha256:ABC"')
    with pytest.raises(heartbeats.HeartbeatInvalid):
        heartbeats.decode(message)
