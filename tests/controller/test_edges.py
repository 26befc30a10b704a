"""Where the local target meets the machine: ports, the control channel, logs, the ledger, configuration files."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from functions.api.kinds.inference_service import InferenceService
from functions.controller.local import ledger as ledgers
from functions.controller.local import target as targets
from functions.controller.local.config_source import PoolUnusable, pool_from, signature
from functions.controller.local.control import ControllerGone, OrderRefused, ask_controller, serve_control
from functions.controller.local.layout import SOCKET_PATH_MAX_BYTES, StateLayout
from functions.controller.local.ledger import Entry, Ledger
from functions.controller.local.log_files import LOG_MAX_BYTES, last_lines, open_log
from functions.controller.local.port_check import PortsTaken, check_ports
from functions.controller.local.ports import PortUse
from functions.controller.local.reconciler import Reconciler, read_pools
from functions.controller.local.settings import LocalSettings
from functions.controller.local.target import Target

PROJECT = Path(__file__).parents[2]
SERVICE = PROJECT / "inferenceservices" / "smollm2-135m.yaml"


# -- ports ------------------------------------------------------------------------------------------------------------


def test_a_taken_port_is_named_with_its_holder_and_the_setting_that_moves_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortsTaken) as raised:
            check_ports([PortUse(port, "gateway (https)", "SHOAL_PORT_GATEWAY")])
        words = str(raised.value)
        assert f"{port} for gateway (https)" in words
        assert f"process {os.getpid()}" in words
        assert "SHOAL_PORT_GATEWAY" in words
        assert "SHOAL_PORT_BASE" in words
        check_ports([PortUse(port, "gateway (https)", "SHOAL_PORT_GATEWAY")], ours={os.getpid()})


# -- the control channel ----------------------------------------------------------------------------------------------


@pytest.fixture
async def channel(layout: StateLayout) -> AsyncIterator[Path]:
    async def handle(order: dict[str, Any]) -> Any:
        if order.get("do") != "status":
            raise OrderRefused("no such order")
        return {"fine": True}

    server = await serve_control(layout.control_socket, handle)
    yield layout.control_socket
    server.close()


async def test_an_order_is_answered(channel: Path) -> None:
    assert await asyncio.to_thread(ask_controller, channel, {"do": "status"}) == {"fine": True}


async def test_a_refusal_comes_back_in_words(channel: Path) -> None:
    with pytest.raises(OrderRefused, match="no such order"):
        await asyncio.to_thread(ask_controller, channel, {"do": "dance"})


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'"x"\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
async def test_what_is_no_order_is_refused_and_the_channel_lives(channel: Path, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(channel))
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    assert b'"ok": false' in answer
    assert await asyncio.to_thread(ask_controller, channel, {"do": "status"}) == {"fine": True}


async def test_an_endless_line_is_cut_off(channel: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(channel), limit=4096)
    try:
        writer.write(b"x" * (2 * 1024 * 1024))
        await writer.drain()
        assert await reader.read() == b""
    except ConnectionError:
        pass  # hung up on while it was still sending: just as good
    writer.close()
    assert await asyncio.to_thread(ask_controller, channel, {"do": "status"}) == {"fine": True}


async def test_the_channel_is_its_owners_only(channel: Path) -> None:
    assert channel.stat().st_mode & 0o777 == 0o600
    assert channel.parent.stat().st_mode & 0o777 == 0o700


def test_without_a_controller_that_is_said(layout: StateLayout) -> None:
    with pytest.raises(ControllerGone):
        ask_controller(layout.control_socket, {"do": "status"})


def test_a_long_state_directory_still_has_usable_sockets(tmp_path: Path) -> None:
    layout = StateLayout.at(tmp_path / ("long" * 30))
    other = StateLayout.at(tmp_path / ("long" * 31))
    assert len(str(layout.control_socket)) <= SOCKET_PATH_MAX_BYTES
    assert layout.control_socket != other.control_socket


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_large_log_is_turned_over_at_the_next_start(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"old\n")
    with log.open("r+b") as file:
        file.truncate(LOG_MAX_BYTES + 1)
    with open_log(log) as file:
        file.write(b"new\n")
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "x.log.1").stat().st_size == LOG_MAX_BYTES + 1


def test_the_end_of_a_log_survives_bad_bytes(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"one\ntwo\n\xff\xfethree\n")
    assert last_lines(log, 2) == ["two", "\ufffd\ufffdthree"]
    assert last_lines(tmp_path / "none.log", 2) == []


@pytest.mark.parametrize("document", [b"", b"{", b'{"processes": 3}', b"\xff", b'{"processes": [{}]}'])
def test_a_ledger_that_cannot_be_read_counts_as_empty(tmp_path: Path, document: bytes) -> None:
    (tmp_path / "ledger").write_bytes(document)
    assert ledgers.read(tmp_path / "ledger") == Ledger()


def test_the_ledger_reads_what_it_wrote(tmp_path: Path) -> None:
    ledger = Ledger(7, (Entry(name="a", role="engine", spec_hash="x", phase="ready", pid=9, started_at=1.5),))
    ledgers.replace_file(tmp_path / "ledger", ledgers.encode(ledger))
    assert ledgers.read(tmp_path / "ledger") == ledger
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.parametrize("document", [b"{}x", b'{"engine": "other"}', b'{"replicas": 99}', b'{"unknown": 1}'])
def test_a_target_that_makes_no_sense_is_the_default(tmp_path: Path, document: bytes) -> None:
    (tmp_path / "target").write_bytes(document)
    assert targets.read(tmp_path / "target") == Target()


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.fixture
def config_dir(layout: StateLayout) -> Path:
    directory = layout.config_dir / "inferenceservices"
    directory.mkdir()
    (directory / SERVICE.name).write_bytes(SERVICE.read_bytes())
    return layout.config_dir


def test_our_inference_service_becomes_a_pool(config_dir: Path) -> None:
    (pool,) = read_pools(config_dir)
    assert (pool.name, pool.replicas, pool.model) == ("smollm2-135m", 2, "smollm2-135m")
    assert "--dtype=float32" in pool.args
    assert dict(pool.env)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


def test_a_mistake_keeps_the_last_good_pools_even_for_the_next_controller(
    layout: StateLayout, config_dir: Path
) -> None:
    settings = LocalSettings(_env_file=None)
    Reconciler(layout, settings, config_dir).look()
    (config_dir / "inferenceservices" / SERVICE.name).write_text("kind: InferenceService\n")
    successor = Reconciler(layout, settings, config_dir)
    assert successor.look()
    assert [pool.name for pool in successor.wanted.pools] == ["smollm2-135m"]
    assert any(f"inferenceservices/{SERVICE.name}:1" in problem for problem in successor.wanted.problems)
    assert not successor.look()


def test_any_edit_changes_the_signature(config_dir: Path) -> None:
    before = signature(config_dir)
    file = config_dir / "inferenceservices" / SERVICE.name
    os.utime(file, ns=(1, 1))
    touched = signature(config_dir)
    file.unlink()
    assert len({before, touched, signature(config_dir)}) == 3


def service(**model: Any) -> InferenceService:
    return InferenceService.model_validate(
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": "x", "labels": {"shoal.dev/pool": "x"}},
            "spec": {"predictor": {"model": {"modelFormat": {"name": "vLLM"}, **model}}},
        }
    )


@pytest.mark.parametrize("uri", ["s3://elsewhere/x", "pvc://shoal-models/", "pvc://shoal-models/a/b", "pvc://other/x"])
def test_a_model_that_lies_elsewhere_is_refused_with_what_would_do(uri: str) -> None:
    with pytest.raises(PoolUnusable, match="pvc://shoal-models/<name>"):
        pool_from(service(storageUri=uri))


def test_a_service_of_somebody_else_is_none_of_ours() -> None:
    theirs = service(storageUri="s3://elsewhere/x").model_copy(
        update={"metadata": service().metadata.model_copy(update={"labels": {}})}
    )
    assert pool_from(theirs) is None


# -- KServe -----------------------------------------------------------------------------------------------------------


def test_the_inference_service_is_one_that_kserve_takes() -> None:
    directory = os.environ.get("SHOAL_CRDS_DIR", "")
    if not directory:
        pytest.skip(
            "SHOAL_CRDS_DIR is not set: point it at a directory with KServe's CRDs as one YAML each "
            "(serving.kserve.io_inferenceservices.yaml, from config/crd/full of the KServe repository)"
        )
    yaml = YAML(typ="safe", pure=True)
    crd = yaml.load((Path(directory) / "serving.kserve.io_inferenceservices.yaml").read_text())
    schema = next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == "v1beta1")
    document = yaml.load(SERVICE.read_text())
    assert list(mismatches(document, schema, "")) == []
    document["spec"]["predictor"].update(minReplicas="two", maxReplica=3)  # the check itself must see both
    assert len(list(mismatches(document, schema, ""))) == 2


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def mismatches(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Against a structural schema: types, required and, since Kubernetes drops those without a word, unknown fields."""
    expected = TYPES.get(schema.get("type", ""))
    if expected is not None and (not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)):
        yield f"{path}: {value!r} is not of type {schema['type']}"
    elif isinstance(value, dict):
        yield from (f"{path}.{name} is required" for name in schema.get("required", []) if name not in value)
        for name, child in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from mismatches(child, below, f"{path}.{name}")
            elif "properties" in schema:
                yield f"{path}.{name} is not known"
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from mismatches(child, schema["items"], f"{path}[{index}]")
