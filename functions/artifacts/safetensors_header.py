"""Verify the header of a safetensors file before an engine opens the file.

    u64 little-endian header length | JSON header | tensor bytes

Engines trust the header for offsets and names. The common library rejects holes, overlaps, overflows and trailing
bytes but accepts duplicate keys and any name (measured, reliability notes, fault 35). So the whole header is checked
here: strict JSON, plain names, known types, and tensors that cover the rest of the file exactly, in order, without a
gap. Worked example (test_worked_example): one F32 tensor of shape [2, 3] needs data_offsets [0, 24] and a file of 8 +
header + 24 bytes. `adapter_weights.check_finite` checks the values.
"""

import math
import os
import re
import struct
from dataclasses import dataclass
from typing import BinaryIO

from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.strict_json import strict_object

HEADER_MAX_BYTES = 16 * 1024 * 1024
MAX_TENSORS = 50_000
# A matrix's entry has three brackets and five commas; the rest allows for more dimensions and metadata texts.
HEADER_MAX_MARKS = 11 * MAX_TENSORS + 100_000
_MAX_DIMENSIONS = 8
_MAX_SIZE = 2**40
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,511}")
# Floating types in which adapters are trained and saved; vLLM does not serve quantised or integer adapters.
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # offset in the file, including the header
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


def read_tensors(file: BinaryIO) -> tuple[Tensor, ...]:
    """Return the tensors of an open file in the order of their bytes; raise ArtifactRefused for an invalid header."""
    file_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    prefix = file.read(8)
    if len(prefix) < 8:
        raise ArtifactRefused("not a safetensors file: shorter than 8 bytes")
    (header_bytes,) = struct.unpack("<Q", prefix)
    if not 2 <= header_bytes <= min(HEADER_MAX_BYTES, file_bytes - 8):
        raise ArtifactRefused(f"not a safetensors file: header length {header_bytes} in a file of {file_bytes} bytes")
    return parse_header(file.read(header_bytes), data_bytes=file_bytes - 8 - header_bytes)


def parse_header(header: bytes, *, data_bytes: int) -> tuple[Tensor, ...]:
    """Return the tensors that `header` describes, in the order of their bytes, with offsets in the file. Raise
    ArtifactRefused if it is invalid or they do not cover `data_bytes` bytes exactly."""
    if not header.startswith(b"{"):
        raise ArtifactRefused("the safetensors header does not begin with {")
    document = strict_object(header, what="the safetensors header", max_marks=HEADER_MAX_MARKS)
    _check_metadata(document.pop("__metadata__", {}))
    if not 1 <= len(document) <= MAX_TENSORS:
        raise ArtifactRefused(f"{len(document)} tensors; a file has 1 to {MAX_TENSORS}")
    base = 8 + len(header)
    tensors = sorted((_tensor(name, entry, base) for name, entry in document.items()), key=lambda t: (t.begin, t.end))
    expected = base
    for tensor in tensors:
        if tensor.begin != expected:
            raise ArtifactRefused(f"tensor {tensor.name} does not begin where the one before it ends")
        expected = tensor.end
    if expected != base + data_bytes:
        raise ArtifactRefused(f"the tensors cover {expected - base} of {data_bytes} data bytes")
    return tuple(tensors)


def _check_metadata(metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ArtifactRefused("__metadata__ is not a map of text to text")


def _tensor(name: str, entry: object, base: int) -> Tensor:
    if _NAME.fullmatch(name) is None:
        raise ArtifactRefused(f"tensor name {name[:200]!r} is not allowed")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ArtifactRefused(f"tensor {name} has not exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ArtifactRefused(f"tensor {name} is of type {str(dtype)[:20]!r}; allowed: {', '.join(ITEM_BYTES)}")
    if not _are_sizes(shape) or not 1 <= len(shape) <= _MAX_DIMENSIONS:
        raise ArtifactRefused(f"tensor {name} has an impossible shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ArtifactRefused(f"tensor {name} has impossible data_offsets")
    needed_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != needed_bytes:
        raise ArtifactRefused(
            f"tensor {name} needs {needed_bytes} bytes, its data_offsets span {offsets[1] - offsets[0]}"
        )
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), begin=base + offsets[0], end=base + offsets[1])


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= _MAX_SIZE for value in values)
