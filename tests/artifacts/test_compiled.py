"""Compile caches of engines: packing is reproducible, and unpacking writes only plain files inside the folder."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from functions.api.ids import Digest
from functions.artifacts import compiled
from functions.artifacts.compiled import CACHE_FOLDER, MAX_COMPANIONS, PACK_NAME, Companion
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, ArtifactRefused
from functions.artifacts.locations import parse_artifact_uri
from functions.artifacts.manifest import hex_of
from functions.artifacts.s3 import S3Store

WEIGHTS = Digest("sha256:" + "a" * 64)
FILES = {
    "torch_aot_compile/261b6a/inductor_cache/3b/c3bw.main.so": b"library",
    "torch_aot_compile/261b6a/model": b"graph",
    "0f3a/rank_0_0/backbone/vllm_compile_cache.py": b"{}",
}


def cache_root(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (folder / CACHE_FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / CACHE_FOLDER / name).write_bytes(content)
    return folder


def packed(tmp_path: Path, files: dict[str, bytes] = FILES, name: str = "pack") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    compiled.pack(cache_root(tmp_path / f"{name}-root", files), folder)
    return folder


def read(root: Path) -> dict[str, bytes]:
    found = sorted(path for path in (root / CACHE_FOLDER).rglob("*") if path.is_file())
    return {path.relative_to(root / CACHE_FOLDER).as_posix(): path.read_bytes() for path in found}


def test_pack_unpacks_to_the_same_files(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    assert compiled.lay_out(folder / PACK_NAME, tmp_path / "other") == 3
    assert read(tmp_path / "other") == FILES
    assert compiled.lay_out(folder / PACK_NAME, tmp_path / "other") == 0, "it is there"


def test_unpacking_keeps_files_that_the_engine_compiled(tmp_path: Path) -> None:
    own = cache_root(tmp_path / "other", {"torch_aot_compile/261b6a/model": b"its own"})
    assert compiled.lay_out(packed(tmp_path) / PACK_NAME, own) == 2
    assert read(own)["torch_aot_compile/261b6a/model"] == b"its own"


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    """Two replicas with the same compiled files push the same artifact, whatever the files' timestamps."""
    first, second = packed(tmp_path, name="one"), packed(tmp_path, dict(reversed(FILES.items())), name="two")
    assert (first / PACK_NAME).read_bytes() == (second / PACK_NAME).read_bytes()


def test_keys_are_the_engines_own_names(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    folder.mkdir()
    more = FILES | {"0f3a/rank.lock": b"", "torch_aot_compile/261b6a/x.tmp": b""}
    assert compiled.pack(cache_root(tmp_path / "root", more), folder) == ("0f3a", "261b6a")
    assert {*compiled._names_in(folder / PACK_NAME)} == {*FILES}, "without what a process was at"


def test_an_engine_that_compiled_nothing_has_nothing_to_pack(tmp_path: Path) -> None:
    (tmp_path / CACHE_FOLDER).mkdir()
    with pytest.raises(ArtifactMissing, match="enforce-eager"):
        compiled.pack(tmp_path, tmp_path)


def link(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return made


@pytest.mark.parametrize(
    "member",
    [
        lambda: tarfile.TarInfo("../outside"),
        lambda: tarfile.TarInfo("/etc/cron.d/x"),
        lambda: tarfile.TarInfo("a/../../x"),
        lambda: tarfile.TarInfo("./a"),
        lambda: tarfile.TarInfo("/".join("a" * 40)),
        lambda: tarfile.TarInfo("a\nb"),
        lambda: link("model"),
    ],
)
def test_pack_with_a_non_plain_file_is_refused_whole(tmp_path: Path, member: Callable[[], tarfile.TarInfo]) -> None:
    """A pack with a member outside of the engine's folder is refused before any file is written."""
    with tarfile.open(tmp_path / PACK_NAME, "w") as made:
        good = tarfile.TarInfo("good")
        good.size = 2
        made.addfile(good, io.BytesIO(b"ok"))
        made.addfile(member())
    with pytest.raises(ArtifactRefused, match="only plain files"):
        compiled.lay_out(tmp_path / PACK_NAME, tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("content", [b"", b"not an archive" * 100])
def test_invalid_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PACK_NAME).write_bytes(content)
    with pytest.raises(ArtifactRefused):
        compiled.lay_out(tmp_path / PACK_NAME, tmp_path / "root")


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("", True), ("0.32.0/h100", True), ("h100", True), ("0.32.0", True), ("0.33.0/h100", False), ("a100", False)],
)
def test_node_selects_matching_compile_caches(wanted: str, fits: bool) -> None:
    assert Companion("sha256:" + "b" * 64, "0.32.0", "h100", ("0f3a",), 7).fits(wanted) is fits


def test_tenants_cannot_name_compile_caches() -> None:
    """A compile cache is code: tenants must not be able to name one as an artifact or to write one."""
    with pytest.raises(ArtifactRefused, match="the store's own folders"):
        parse_artifact_uri(f"s3://models/compiled/sha256/{'a' * 63}", bucket="models")


@pytest.mark.servers
def test_companions_of_weights_in_the_store(store: S3Store, tmp_path: Path) -> None:
    assert compiled.read_index(store, WEIGHTS).companions == ()
    first = compiled.publish(store, WEIGHTS, packed(tmp_path), engine="0.32.0", accelerator="cpu")
    assert compiled.publish(store, WEIGHTS, tmp_path / "pack", engine="0.32.0", accelerator="cpu") == first
    assert compiled.read_index(store, WEIGHTS).companions == (first,), "once"
    for number in range(MAX_COMPANIONS):
        folder = packed(tmp_path, {f"k{number}/model": b"%d" % number}, name=f"p{number}")
        newest = compiled.publish(store, WEIGHTS, folder, engine="0.32.0", accelerator="h100")
    known = compiled.read_index(store, WEIGHTS).companions
    assert len(known) == MAX_COMPANIONS and known[-1] == newest and first not in known
    with pytest.raises(ArtifactRefused, match="is not a name of an engine"):
        compiled.publish(store, WEIGHTS, folder, engine="0.32.0", accelerator="../h100")
    index_key = f"compiled/sha256/{hex_of(WEIGHTS)}/index.json"
    for garbage in (b"{", msgspec.json.encode({"companions": [{"digest": "x"}]})):
        store.put(index_key, garbage)
        with pytest.raises(ArtifactCorrupt, match="index"):
            compiled.read_index(store, WEIGHTS)
