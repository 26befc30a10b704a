"""Safetensors headers: output of the common writer is accepted, every malformed header is refused with a message."""

import ctypes
import io
import json
import struct
import tempfile
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError, TensorSpec, deserialize, serialize

from functions.artifacts import safetensors_header
from functions.artifacts.adapter_weights import check_finite
from functions.artifacts.errors import ArtifactRefused
from tests.artifacts.adapter_files import safetensors_bytes, tensors

_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_NAMES = st.from_regex(r"[a-z_][a-z0-9_.]{0,20}", fullmatch=True)
_TENSORS = st.dictionaries(
    _NAMES,
    st.tuples(st.sampled_from(sorted(_ITEM_BYTES)), st.lists(st.integers(0, 5), min_size=1, max_size=3)),
    min_size=1,
    max_size=6,
)


def opened(content: bytes) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it with the test
    file.write(content)
    file.seek(0)
    return file


def header(document: object, *, data_bytes: int) -> tuple[safetensors_header.Tensor, ...]:
    return safetensors_header.parse_header(json.dumps(document).encode(), data_bytes=data_bytes)


def one(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}


def test_worked_example() -> None:
    (tensor,) = header(one(), data_bytes=24)
    assert (tensor.size_bytes, tensor.shape) == (24, (2, 3))
    with pytest.raises(ArtifactRefused, match="cover 24 of 25"):
        header(one(), data_bytes=25)


@given(_TENSORS)
def test_accepts_what_the_common_writer_writes(specs: dict[str, tuple[str, list[int]]]) -> None:
    content: dict[str, TensorSpec] = {}
    buffer = ctypes.create_string_buffer(8 * 5**3)
    for name, (dtype, shape) in specs.items():
        size = _ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        content[name] = TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffer), data_len=size)
    with opened(serialize(content, {"format": "pt"})) as file:
        found = safetensors_header.read_tensors(file)
        check_finite(file, found)
    assert {tensor.name: list(tensor.shape) for tensor in found} == {name: spec[1] for name, spec in specs.items()}


@given(st.data())
def test_accepted_headers_are_readable_by_the_common_reader(data: st.DataObject) -> None:
    """Change one byte of a valid file; if shoal still accepts the header, the library must accept it too."""
    good = bytearray(safetensors_bytes(tensors()))
    position = data.draw(st.integers(0, len(good) - 1))
    good[position] = data.draw(st.integers(0, 255))
    try:
        with opened(bytes(good)) as file:
            safetensors_header.read_tensors(file)
    except ArtifactRefused:
        return
    try:
        deserialize(bytes(good))
    except SafetensorError as error:
        pytest.fail(f"accepted what the engine's reader refuses: {error}")


@given(st.binary(max_size=200))
def test_arbitrary_headers_are_refused_and_nothing_else_is_raised(content: bytes) -> None:
    with pytest.raises(ArtifactRefused):
        safetensors_header.parse_header(content, data_bytes=8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "shorter than 8"),
        (b"1234567", "shorter than 8"),
        (struct.pack("<Q", 2**63) + b"{}", "header length"),
        (struct.pack("<Q", 0), "header length"),
        (struct.pack("<Q", 100) + b"{}", "header length"),
        (struct.pack("<Q", 2) + b"{}", "0 tensors"),
        (b"\x80\x04\x95\x00\x00\x00\x00\x00" + b"x" * 100, "header length"),
        (b"PK\x03\x04" + bytes(100), "header length|begin with"),
        (b"GGUF" + bytes(100), "header length|begin with"),
        (safetensors_bytes(tensors())[:-1], "cover"),
        (safetensors_bytes(tensors()) + b"\0", "cover"),
    ],
)
def test_refuses_the_file(content: bytes, words: str) -> None:
    with opened(content) as file, pytest.raises(ArtifactRefused, match=words):
        safetensors_header.read_tensors(file)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"../x": one()["a"]}, "name"),
        ({"": one()["a"]}, "name"),
        ({"a" * 513: one()["a"]}, "name"),
        ({"a": []}, "exactly"),
        (one(extra=1), "exactly"),
        (one(dtype="I8"), "type"),
        (one(dtype=["F32"]), "type"),
        (one(shape=[2, -3]), "shape"),
        (one(shape=[True, 3]), "shape"),
        (one(shape=[2.0, 3]), "shape"),
        (one(shape=[]), "shape"),
        (one(shape=[1] * 9), "shape"),
        (one(shape=[2**41, 0]), "shape"),
        (one(shape=[2, 4]), "needs 32 bytes"),
        (one(data_offsets=[24, 0]), "data_offsets"),
        (one(data_offsets=[0]), "data_offsets"),
        (one(data_offsets=[0, 24, 48]), "data_offsets"),
        (one(data_offsets=[1, 25]), "begin"),
        ({**one(), "b": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, "begin"),
        ({**one(), "__metadata__": {"a": 1}}, "__metadata__"),
        ({**one(), "__metadata__": "x"}, "__metadata__"),
        ([1], "begin with"),
    ],
)
def test_refuses_the_header(document: object, words: str) -> None:
    with pytest.raises(ArtifactRefused, match=words):
        header(document, data_bytes=24)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
        b' "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": NaN}',
        b"{" + b'"a":{' * 50_000,
        b'{"\xff": 1}',
        b'\xef\xbb\xbf{"a": 1}',
    ],
)
def test_refuses_what_is_not_strict_json(raw: bytes) -> None:
    with pytest.raises(ArtifactRefused):
        safetensors_header.parse_header(raw, data_bytes=4)


def test_too_many_tensors_are_refused() -> None:
    names = {f"t{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(50_001)}
    with pytest.raises(ArtifactRefused, match="50001 tensors"):
        header(names, data_bytes=0)


def test_header_is_read_from_the_start_of_the_file() -> None:
    with opened(safetensors_bytes(tensors())) as file:
        file.seek(0, io.SEEK_END)
        assert len(safetensors_header.read_tensors(file)) == 2
