"""Where the local target meets the machine: ports, the control channel, logs, the ledger, configuration files."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from functions.api.loader import Loaded, load_texts
from functions.controller.local.control import ControllerGone, OrderRefused, ask_controller, serve_control
from functions.controller.local.files import LOG_MAX_BYTES, last_lines, open_log, replace_file
from functions.controller.local.instances import LedgerEntry, ProcessLedger, encode_ledger, read_ledger
from functions.controller.local.layout import SOCKET_PATH_MAX_BYTES, StateLayout
from functions.controller.local.pools import PoolUnusable, Target, pools_of, read_target, unusable_problems
from functions.controller.local.port_check import PortsTaken, check_ports
from functions.controller.local.ports import PortUse

PROJECT = Path(__file__).parents[2]
SERVICE = PROJECT / "inferenceservices" / "smollm2-135m.yaml"


# -- ports ------------------------------------------------------------------------------------------------------------


def test_used_port_is_reported_with_its_process_and_setting() -> None:
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


async def test_control_request_is_answered(channel: Path) -> None:
    assert await asyncio.to_thread(ask_controller, channel, {"do": "status"}) == {"fine": True}


async def test_control_refusal_is_returned_as_a_message(channel: Path) -> None:
    with pytest.raises(OrderRefused, match="no such order"):
        await asyncio.to_thread(ask_controller, channel, {"do": "dance"})


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'"x"\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
async def test_invalid_control_request_is_refused_and_the_channel_survives(channel: Path, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(str(channel))
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    assert b'"ok": false' in answer
    assert await asyncio.to_thread(ask_controller, channel, {"do": "status"}) == {"fine": True}


async def test_endless_control_line_is_cut_off(channel: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(channel), limit=4096)
    try:
        writer.write(b"x" * (2 * 1024 * 1024))
        await writer.drain()
        assert await reader.read() == b""
    except ConnectionError:
        pass  # the server closed during the send, which is just as good
    writer.close()
    assert await asyncio.to_thread(ask_controller, channel, {"do": "status"}) == {"fine": True}


async def test_control_socket_is_private_to_its_owner(channel: Path) -> None:
    assert channel.stat().st_mode & 0o777 == 0o600
    assert channel.parent.stat().st_mode & 0o777 == 0o700


def test_missing_controller_is_reported(layout: StateLayout) -> None:
    with pytest.raises(ControllerGone):
        ask_controller(layout.control_socket, {"do": "status"})


def test_a_long_state_directory_still_has_usable_sockets(tmp_path: Path) -> None:
    layout = StateLayout.at(tmp_path / ("long" * 30))
    other = StateLayout.at(tmp_path / ("long" * 31))
    assert len(str(layout.control_socket)) <= SOCKET_PATH_MAX_BYTES
    assert layout.control_socket != other.control_socket


@pytest.mark.parametrize("length", range(0, 90, 3))
def test_every_socket_has_its_directory_however_long_the_state_directory_is(tmp_path: Path, length: int) -> None:
    """Short names may fit below run/ where long ones do not."""
    layout = StateLayout.at(tmp_path / ("s" * (1 + length)))
    layout.make_directories()
    long = f"kv-{'p' * 63}-12-replay.sock"
    paths = set()
    for name in ("controller.sock", "kv-smollm2-135m-0.sock", "kv-smollm2-135m-0-replay.sock", long):
        path = layout.socket(name)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        paths.add(path)
        assert len(str(path).encode()) < 104  # limit of sun_path on macOS; on Linux 108
    assert len(paths) == 4


# -- files ------------------------------------------------------------------------------------------------------------


def test_large_log_is_rotated_at_the_next_start(tmp_path: Path) -> None:
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
    assert read_ledger(tmp_path / "ledger") == ProcessLedger()


def test_the_ledger_reads_what_it_wrote(tmp_path: Path) -> None:
    ledger = ProcessLedger(
        7, (LedgerEntry(name="a", role="engine", spec_hash="x", phase="ready", pid=9, started_at=1.5),)
    )
    replace_file(tmp_path / "ledger", encode_ledger(ledger))
    assert read_ledger(tmp_path / "ledger") == ledger
    assert [path.name for path in tmp_path.iterdir()] == ["ledger"]


@pytest.mark.parametrize("document", [b"{}x", b'{"engine": "other"}', b'{"replicas": 99}', b'{"unknown": 1}'])
def test_invalid_target_falls_back_to_the_default(tmp_path: Path, document: bytes) -> None:
    (tmp_path / "target").write_bytes(document)
    assert read_target(tmp_path / "target") == Target()


# -- configuration ----------------------------------------------------------------------------------------------------


def loaded(**model: Any) -> Loaded:
    """Load one InferenceService whose predictor.model has these parts."""
    document = yaml_of(model, "x")
    return load_texts([("x.yaml", document.encode())])


def yaml_of(model: dict[str, Any], name: str, labels: str = "", replicas: int = 1) -> str:
    parts = {"modelFormat": {"name": "vLLM"}, "args": ["--max-model-len=2048"], **model}
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}, labels: {{{labels or f"shoal.dev/pool: {name}"}}}}}
spec: {{predictor: {{minReplicas: {replicas}, maxReplicas: 20, model: {json.dumps(parts)}}}}}
"""


def test_our_inference_service_becomes_a_pool() -> None:
    (pool,) = pools_of(load_texts([(SERVICE.name, SERVICE.read_bytes())]))
    assert (pool.name, pool.replicas, pool.model) == ("smollm2-135m", 2, "smollm2-135m")
    assert "--dtype=float32" in pool.args
    assert dict(pool.env)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.mark.parametrize("uri", ["s3://elsewhere/x", "pvc://shoal-models/", "pvc://shoal-models/a/b", "pvc://other/x"])
def test_model_outside_the_models_directory_is_refused_with_location_and_fix(uri: str) -> None:
    (problem,) = unusable_problems(loaded(storageUri=uri), Target())
    assert problem.key_path == "spec.predictor.model.storageUri"
    assert (problem.place.file, problem.place.line) == ("x.yaml", 4)
    assert f"found {uri}; allowed on one machine: pvc://shoal-models/<name>" in problem.message
    with pytest.raises(PoolUnusable, match=r"x\.yaml:4"):
        pools_of(loaded(storageUri=uri))


def test_foreign_inference_service_is_ignored() -> None:
    theirs = yaml_of({"storageUri": "s3://elsewhere/x"}, "x", labels="app: other")
    assert pools_of(load_texts([("x.yaml", theirs.encode())])) == ()


@pytest.mark.parametrize(("target", "count"), [(Target(), 24), (Target(replicas=11), 22)])
def test_more_replicas_than_there_are_ports_for_are_refused(target: Target, count: int) -> None:
    texts = [yaml_of({"storageUri": "pvc://shoal-models/m"}, name, replicas=12) for name in ("a", "b")]
    (problem,) = unusable_problems(load_texts((f"{n}.yaml", text.encode()) for n, text in enumerate(texts)), target)
    assert f"{count} replicas are declared in all" in problem.message
    assert unusable_problems(load_texts([("0.yaml", texts[0].encode())]), Target()) == ()


# -- KServe -----------------------------------------------------------------------------------------------------------


def test_inference_service_matches_kserves_schema() -> None:
    directory = os.environ.get("SHOAL_CRDS_DIR", "")
    if not directory:
        pytest.skip(
            "SHOAL_CRDS_DIR is not set: point it at a directory with KServe's CRDs as one YAML each "
            "(serving.kserve.io_inferenceservices.yaml, from config/crd/full of the KServe repository)"
        )
    # Use libyaml if available: in pure Python two megabytes took over two minutes on a busy machine.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    crd = yaml.load((Path(directory) / "serving.kserve.io_inferenceservices.yaml").read_text(), Loader=loader)
    schema = next(v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == "v1beta1")
    document = yaml.load(SERVICE.read_text(), Loader=loader)
    assert list(mismatches(document, schema, "")) == []
    document["spec"]["predictor"].update(minReplicas="two", maxReplica=3)  # the check itself must detect both
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
    """Yield mismatches with a structural schema: types, required fields, and unknown ones, which Kubernetes drops."""
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
