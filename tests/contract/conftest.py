"""One contract, two engines.

Every test here runs against the simulated engine and, where there is one, the real vLLM.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from functions.engines.client import EngineClient
from tests.contract.adapters import make_adapter
from tests.contract.servers import Engine, running

_HOW_TO_GET_IT = (
    "no real engine: SHOAL_ENGINE_PYTHON (python of a venv with vLLM) and SHOAL_BASE_MODEL_DIR are unset; "
    "`make up` prepares both and prints them"
)
_KINDS = [
    pytest.param("sim", marks=pytest.mark.servers),
    pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.timeout(400)]),
]


@pytest.fixture(scope="session", params=_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "vllm" and not (os.environ.get("SHOAL_ENGINE_PYTHON") and _model_dir()):
        pytest.skip(_HOW_TO_GET_IT)
    return str(request.param)


@pytest.fixture(scope="session")
def engine(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running(kind, tmp_path_factory.mktemp("engine") / f"{kind}.log") as started:
        yield started


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=engine.base_url, timeout=110) as client:
        yield client


@pytest.fixture
def client(http: httpx.AsyncClient, engine: Engine) -> EngineClient:
    return EngineClient(http, engine.base_url, timeout_s=60)


@pytest.fixture(scope="session")
def adapter_dirs(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two good adapters, and one for each thing that can be wrong with one."""
    root = tmp_path_factory.mktemp("adapters")
    base: dict[str, Any] = {"base": engine.model_dir}
    dirs = {
        "a": make_adapter(root / "a", seed=1, **base),
        "b": make_adapter(root / "b", seed=2, **base),
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
