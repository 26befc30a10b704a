"""NaN and infinity are found at every position, without false alarms and at a bounded cost."""

import io
import math
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.artifacts.adapter_weights import check_finite
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.safetensors_header import ITEM_BYTES, Tensor

_PACKED = {"F64": "<d", "F32": "<f", "F16": "<e"}


def tensors(*values: bytes, dtype: str, behind: int = 0) -> tuple[io.BytesIO, tuple[Tensor, ...]]:
    """Return a file of one-dimensional tensors, and the tensors."""
    found, begin = [], behind
    for number, data in enumerate(values):
        shape = (len(data) // ITEM_BYTES[dtype],)
        found.append(Tensor(name=f"t{number}", dtype=dtype, shape=shape, begin=begin, end=begin + len(data)))
        begin += len(data)
    return io.BytesIO(bytes(behind) + b"".join(values)), tuple(found)


@pytest.mark.parametrize(
    ("dtype", "bad"),
    [
        ("F32", struct.pack("<f", float("nan"))),
        ("F32", struct.pack("<f", float("-inf"))),
        ("F16", struct.pack("<e", float("inf"))),
        ("F16", struct.pack("<H", 0xFC01)),
        ("BF16", b"\xc0\x7f"),
        ("BF16", b"\x80\xff"),
        ("F64", struct.pack("<d", float("nan"))),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 600_000, 1_199_999])
def test_one_bad_value_is_found_wherever_it_is(dtype: str, bad: bytes, position: int) -> None:
    good = bytes(len(bad))
    data = good * position + bad + good * (1_199_999 - position)
    file, found = tensors(good, data, dtype=dtype, behind=13)
    with pytest.raises(ArtifactRefused, match="t1 holds NaN or infinity"):
        check_finite(file, found)


@given(st.sampled_from(sorted(_PACKED)), st.data())
def test_a_value_is_refused_exactly_if_it_is_no_number(dtype: str, data: st.DataObject) -> None:
    width = {"F64": 64, "F32": 32, "F16": 16}[dtype]
    values = data.draw(st.lists(st.floats(width=width), min_size=1, max_size=20))  # type: ignore[arg-type]
    file, found = tensors(struct.pack(f"<{len(values)}{_PACKED[dtype][1]}", *values), dtype=dtype)
    if all(math.isfinite(value) for value in values):
        check_finite(file, found)
    else:
        with pytest.raises(ArtifactRefused):
            check_finite(file, found)


@given(st.binary(min_size=2, max_size=2))
def test_bf16_is_checked_as_f32(value: bytes) -> None:
    (widened,) = struct.unpack("<f", b"\0\0" + value)
    file, found = tensors(value, dtype="BF16")
    if math.isfinite(widened):
        check_finite(file, found)
    else:
        with pytest.raises(ArtifactRefused):
            check_finite(file, found)


class Counted(io.BytesIO):
    """File that counts the bytes read from it."""

    read_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("position", [0, 1_000_000, 1_999_999])
def test_large_file_is_sampled_at_beginning_middle_and_end(position: int) -> None:
    data = bytearray(4_000_000)
    data[2 * position : 2 * position + 2] = b"\xc0\x7f"
    file, found = tensors(bytes(data), dtype="BF16")
    counted = Counted(file.getvalue())
    with pytest.raises(ArtifactRefused):
        check_finite(counted, found, budget_bytes=300_000)
    sound = Counted(bytes(4_000_000))
    check_finite(sound, found, budget_bytes=300_000)
    assert sound.read_bytes == 300_000


def test_many_small_tensors_share_the_budget() -> None:
    file, found = tensors(*[bytes(4000)] * 1000, dtype="F32")
    counted = Counted(file.getvalue())
    check_finite(counted, found, budget_bytes=100_000)
    assert counted.read_bytes <= 100_000


def test_memory_does_not_grow_with_the_file() -> None:
    file, found = tensors(bytes(64_000_000), dtype="BF16")
    tracemalloc.start()
    try:
        check_finite(file, found)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_a_file_that_ends_early_is_refused() -> None:
    file, found = tensors(bytes(100), dtype="F32")
    with pytest.raises(ArtifactRefused, match="ended while"):
        check_finite(io.BytesIO(file.getvalue()[:50]), found)
