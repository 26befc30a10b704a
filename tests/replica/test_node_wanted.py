"""Weights that a node must fetch, and the folder where an engine finds them."""

from pathlib import Path

import httpx
import pytest

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactRefused, CacheFailed
from functions.artifacts.locations import WeightsName
from functions.replica.node_fetch.wanted import Wanted, link, parse_wanted, published_digest

DIGEST = Digest("sha256:" + "a" * 64)
NAME = WeightsName("llama", "v1")


def test_arguments_are_kserves() -> None:
    """`<uri> <folder>`, several times: an image that KServe calls as a storage initializer gets no others."""
    assert parse_wanted(["shoal://llama@v1", "/mnt/models"]) == [Wanted(NAME, Path("/mnt/models"))]
    assert parse_wanted([DIGEST, "shoal://llama@v1", "/a"]) == [Wanted(DIGEST), Wanted(NAME, Path("/a"))]
    for wrong in (["/mnt/models"], [DIGEST, "/a", "/b"], ["llama@v1"], ["s3://llama/v1"], ["shoal://../x@v1"]):
        with pytest.raises(ArtifactRefused):
            parse_wanted(wrong)


def artifact(root: Path, name: str, *files: str) -> Path:
    folder = root / name
    (folder / "speculator").mkdir(parents=True)
    for file in ("shoal-manifest.json", "config.json", "speculator/config.json", *files):
        (folder / file).write_text(name)
    return folder


def test_a_mounted_folder_shows_the_artifact_and_then_the_next(tmp_path: Path) -> None:
    mount = tmp_path / "mnt"
    mount.mkdir()
    link(artifact(tmp_path, "one", "old.safetensors"), mount)
    link(artifact(tmp_path, "two", "new.safetensors"), mount)
    shown = {path.name: path.resolve() for path in mount.iterdir()}
    assert set(shown) == {"shoal-manifest.json", "config.json", "speculator", "new.safetensors"}
    assert (mount / "speculator" / "config.json").read_text() == "two"
    assert all(path.is_relative_to(tmp_path / "two") for path in shown.values())


def test_a_folder_that_is_not_there_becomes_a_link(tmp_path: Path) -> None:
    for name in ("one", "two"):
        link(artifact(tmp_path, name), tmp_path / "models" / "llama")
        assert (tmp_path / "models" / "llama" / "config.json").read_text() == name


def test_existing_foreign_folder_stays(tmp_path: Path) -> None:
    mount = tmp_path / "mnt"
    mount.mkdir()
    (mount / "config.json").write_text("mine")
    with pytest.raises(CacheFailed, match="not replaced"):
        link(artifact(tmp_path, "one"), mount)
    assert (mount / "config.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, {"digest": DIGEST}, DIGEST),
        (200, {}, None),
        (200, {"digest": None}, None),
        (200, {"digest": "sha256:short"}, None),
        (200, ["no model"], None),
        (404, {"error": {}}, None),
    ],
)
async def test_registry_digest_is_used_if_valid(status: int, body: object, found: Digest | None) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/internal/v1/weights/llama/v1"
        return httpx.Response(status, json=body)

    async with httpx.AsyncClient(base_url="http://registry", transport=httpx.MockTransport(answer)) as registry:
        assert await published_digest(registry, NAME) == found


async def test_unavailable_registry_returns_no_digest() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async with httpx.AsyncClient(base_url="http://registry", transport=httpx.MockTransport(away)) as registry:
        assert await published_digest(registry, NAME) is None
