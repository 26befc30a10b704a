"""NaN and infinity among an adapter's weights: training that diverged, refused before it answers anybody.

A value is one of the two if its exponent bits are all ones. In little-endian floats these lie in the last byte (and the
one before it), so the last bytes alone are looked at first, at the speed of a slice: sound weights never have them all
set (that would be 1.7e38 and more in F32 and BF16, 32768 and more in F16). Only where they are is the value looked at.
Worked example (test_one_bad_value_is_found_wherever_it_is): BF16 NaN is `c0 7f`; its last byte is one of 7f and ff.

Files up to FULL_SCAN_BYTES, which is every adapter in use, are looked at whole; of larger ones as many bytes, spread
evenly over the tensors, each at its beginning, middle and end. One block is in memory at a time.
"""

from array import array
from collections.abc import Iterator
from typing import BinaryIO

from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.safetensors_header import ITEM_BYTES, Tensor

FULL_SCAN_BYTES = 512 * 1024**2  # 0.4 s
_BLOCK_BYTES = 1024**2
_PARTS = 3
# Per type: the array code of that many bytes, the exponent's bits, and the last bytes that a bad value may have.
_EXPONENT = {
    "F64": ("Q", 0x7FF0_0000_0000_0000, b"\x7f\xff"),
    "F32": ("I", 0x7F80_0000, b"\x7f\xff"),
    "F16": ("H", 0x7C00, b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff"),
    "BF16": ("H", 0x7F80, b"\x7f\xff"),
}


def check_finite(file: BinaryIO, tensors: tuple[Tensor, ...], *, budget_bytes: int = FULL_SCAN_BYTES) -> None:
    """Refuse NaN and infinity, naming the tensor; reads at most about `budget_bytes`."""
    whole = sum(tensor.size_bytes for tensor in tensors) <= budget_bytes
    share_bytes = max(_PARTS * 8, budget_bytes // len(tensors))
    for tensor in tensors:
        spans = ((tensor.begin, tensor.end),) if whole else _sampled(tensor, share_bytes)
        if any(_holds_bad(block, tensor.dtype) for span in spans for block in _blocks(file, *span)):
            raise ArtifactRefused(f"tensor {tensor.name} holds NaN or infinity: train or convert it again")


def _sampled(tensor: Tensor, share_bytes: int) -> Iterator[tuple[int, int]]:
    """The beginning, the middle and the end of a tensor: `share_bytes` in all, cut at whole values."""
    item_bytes = ITEM_BYTES[tensor.dtype]
    if tensor.size_bytes <= share_bytes:
        yield tensor.begin, tensor.end
        return
    part_bytes = max(item_bytes, share_bytes // _PARTS // item_bytes * item_bytes)
    step_bytes = (tensor.size_bytes - part_bytes) // (_PARTS - 1) // item_bytes * item_bytes
    for part in range(_PARTS - 1):
        begin = tensor.begin + part * step_bytes
        yield begin, begin + part_bytes
    yield tensor.end - part_bytes, tensor.end


def _blocks(file: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    file.seek(begin)
    while begin < end:
        block = file.read(min(_BLOCK_BYTES, end - begin))
        if not block:
            raise ArtifactRefused("the file ended while it was being read: send it again")
        begin += len(block)
        yield block


def _holds_bad(block: bytes, dtype: str) -> bool:
    code, mask, last_bytes = _EXPONENT[dtype]
    item_bytes = ITEM_BYTES[dtype]
    last = block[item_bytes - 1 :: item_bytes]
    if not any(byte in last for byte in last_bytes):
        return False
    return any(value & mask == mask for value in array(code, block))
