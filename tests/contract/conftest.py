"""One contract for the simulated engine and for vLLM.

Every test here runs against the simulated engine, against recorded answers of vLLM (`recording`), and, in `make soak`,
against vLLM itself.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.engines.client import EngineClient
from tests.contract.adapters import make_adapter
from tests.contract.recording import Recordings
from tests.contract.servers import Engine, running

_HOW_TO_GET_IT = (
    "no real engine: SHOAL_ENGINE_PYTHON (python of a venv with vLLM) and SHOAL_BASE_MODEL_DIR are unset; "
    "`make up` prepares both and prints them"
)
RECORDED = {"test_chat", "test_completions", "test_dialects", "test_refusals", "test_status_routes", "test_tokenize"}
NOT_RECORDED = {"test_models_lists_the_base_model_first"}  # its answer has the model's folder
KEPT = Recordings().functions()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" not in metafunc.fixturenames:
        return
    module, name = metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__
    live = [pytest.mark.engine, pytest.mark.soak, pytest.mark.timeout(400)]
    kinds = [pytest.param("sim", marks=pytest.mark.servers), pytest.param("vllm", marks=live)]
    if f"{module}::{name}" in KEPT:
        kinds.append(pytest.param("recorded"))
    metafunc.parametrize("kind", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "vllm" and not (os.environ.get("SHOAL_ENGINE_PYTHON") and _model_dir()):
        pytest.skip(_HOW_TO_GET_IT)
    return str(request.param)


@pytest.fixture(scope="session")
def engine(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if kind == "recorded":
        yield Engine(kind, "http://recorded", "", None)
        return
    with running(kind, tmp_path_factory.mktemp("engine") / f"{kind}.log") as started:
        yield started


@pytest.fixture(scope="session")
def recordings(engine: Engine) -> Iterator[Recordings]:
    made = Recordings()
    yield made
    if engine.kind == "vllm":
        made.save(httpx.get(f"{engine.base_url}/version").json()["version"])


@pytest.fixture
async def http(
    engine: Engine, recordings: Recordings, request: pytest.FixtureRequest
) -> AsyncIterator[httpx.AsyncClient]:
    transport: httpx.AsyncBaseTransport | None = None
    if engine.kind == "recorded":
        transport = recordings.player(_name_of(request.node))
    elif engine.kind == "vllm" and os.environ.get("SHOAL_RECORD_CONTRACT") and _is_recorded(request.node):
        transport = recordings.recorder(_name_of(request.node))
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=110, transport=transport) as client:
        yield client


def _is_recorded(item: pytest.Function) -> bool:
    return item.module.__name__.rpartition(".")[2] in RECORDED and item.originalname not in NOT_RECORDED


def _name_of(item: pytest.Function) -> str:
    """Return the name of the recording: the test's id without the engine's kind."""
    kind = item.callspec.params["kind"]
    others = item.callspec.id.removeprefix(kind).removesuffix(kind).strip("-")
    return f"{item.module.__name__.rpartition('.')[2]}::{item.originalname}" + (f"[{others}]" if others else "")


@pytest.fixture
def client(http: httpx.AsyncClient, engine: Engine) -> EngineClient:
    return EngineClient(http, engine.base_url, timeout_s=60)


@pytest.fixture(scope="session")
def adapter_dirs(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of three valid adapters, and of one for each possible defect."""
    root = tmp_path_factory.mktemp("adapters")
    base: dict[str, Any] = {"base": engine.model_dir}
    dirs = {
        "a": make_adapter(root / "a", seed=1, **base),
        "b": make_adapter(root / "b", seed=2, **base),
        "head": make_adapter(root / "head", seed=6, with_head=True, **base),
        "rank 64": make_adapter(root / "rank64", seed=3, rank=64, **base),
        "dora": make_adapter(root / "dora", seed=4, use_dora=True, **base),
        "no weights": make_adapter(root / "noweights", seed=5, **base),
        "empty": root / "empty",
    }
    (dirs["no weights"] / "adapter_model.safetensors").unlink()
    dirs["empty"].mkdir()
    return dirs


def _model_dir() -> str | None:
    return os.environ.get("SHOAL_BASE_MODEL_DIR")
