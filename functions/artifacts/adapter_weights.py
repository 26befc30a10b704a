"""Check adapter_model.safetensors: only LoRA pairs, with the ranks of the configuration, that fit the base.

    base_model.model.<module>.lora_A.weight            [rank, in_features]
    base_model.model.<module>.lora_B.weight            [out_features, rank]
    base_model.model.<module>.lora_embedding_A / _B    [rank, vocabulary] / [hidden, rank]

An engine that loads a pair trained for another base fails in its step, or answers nonsense if the sizes happen to
fit. If the base's facts are known, both cases are rejected here. Worked example (test_the_pair_must_fit_the_base):
q_proj with 576 input and 576 output features needs A of [4, 576] and B of [576, 4] at rank 4.
"""

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from functions.artifacts import directories, safetensors_header
from functions.artifacts.base_facts import UNKNOWN_FEATURES, BaseFacts
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused
from functions.artifacts.safetensors_header import ITEM_BYTES, Tensor

# Check for NaN and infinity: weights from diverged training are rejected before they answer a request.
#
# A value is NaN or infinity if its exponent bits are all ones. In little-endian floats these bits are in the last byte
# (and the one before it). So a slice of the last bytes is checked first, which is fast: sound weights never have all
# these bits set (that would be 1.7e38 and more in F32 and BF16, 32768 and more in F16). Full values are checked only in
# blocks with such a last byte. Worked example (test_one_bad_value_is_found_wherever_it_is): BF16 NaN is `c0 7f`; its
# last byte is one of 7f and ff.
#
# Files up to FULL_SCAN_BYTES, which covers every adapter in use, are scanned completely. Of a larger file, as many
# bytes are sampled at the beginning, middle and end of each tensor. One block is in memory at a time.


FULL_SCAN_BYTES = 512 * 1024**2  # 0.4 s
_BLOCK_BYTES = 1024**2
_PARTS = 3
# Per type: the array code of that width, the exponent's bit mask, and the last bytes that a bad value may have.
_EXPONENT = {
    "F64": ("Q", 0x7FF0_0000_0000_0000, b"\x7f\xff"),
    "F32": ("I", 0x7F80_0000, b"\x7f\xff"),
    "F16": ("H", 0x7C00, b"\x7c\x7d\x7e\x7f\xfc\xfd\xfe\xff"),
    "BF16": ("H", 0x7F80, b"\x7f\xff"),
}


def check_finite(file: BinaryIO, tensors: tuple[Tensor, ...], *, budget_bytes: int = FULL_SCAN_BYTES) -> None:
    """Raise ArtifactRefused for NaN or infinity, with the tensor's name. Tensors of more than `budget_bytes` in total
    are only sampled, so that about `budget_bytes` are read."""
    whole = sum(tensor.size_bytes for tensor in tensors) <= budget_bytes
    share_bytes = max(_PARTS * 8, budget_bytes // len(tensors))
    for tensor in tensors:
        spans = ((tensor.begin, tensor.end),) if whole else _sampled(tensor, share_bytes)
        if any(_holds_bad(block, tensor.dtype) for span in spans for block in _blocks(file, *span)):
            raise ArtifactRefused(f"tensor {tensor.name} holds NaN or infinity: train or convert it again")


def _sampled(tensor: Tensor, share_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) spans at the beginning, middle and end of a tensor: about `share_bytes` in total, cut at whole
    values. A tensor of at most `share_bytes` is one span."""
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


WEIGHTS_NAME = "adapter_model.safetensors"
# First bytes of other formats that appear under this name: pickles (protocols 2-5), zip (torch.save), GGUF, gzip.
_FOREIGN = {
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"PK\x03\x04": "a zip archive, as torch.save makes it",
    b"GGUF": "a GGUF file",
    b"\x1f\x8b": "a gzip archive",
}
_LORA_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>.+)\.(?:lora_(?P<side>[AB])\.weight|lora_embedding_(?P<embedding>[AB]))"
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,9})(?:\.|$)")
_EXPERTS = re.compile(r"\.experts(?:\.base_layer)?$")  # fused experts: the engine checks their shapes


@dataclass(frozen=True, slots=True)
class _Half:
    """One of the two matrices (A or B) of a module."""

    tensor: Tensor
    module: str
    side: str  # A or B
    kind: str  # linear or embedding; equal in both halves of a pair

    @property
    def rank(self) -> int | None:
        """The rank, or None for convolutions and fused experts, whose rank the engine checks."""
        shape = self.tensor.shape
        if len(shape) != 2:
            return None
        return shape[0] if self.side == "A" else shape[1]

    @property
    def features(self) -> int:
        return self.tensor.shape[1] if self.side == "A" else self.tensor.shape[0]


def read_weights(directory: Path) -> tuple[Tensor, ...]:
    """Check the adapter's weight file in `directory` and return its tensors' names, types, shapes and offsets. Raise
    ArtifactRefused if the file is missing or malformed, or if NaN or infinity is found (large files are sampled)."""
    try:
        with directories.open_plain(directory / WEIGHTS_NAME) as file:
            try:
                tensors = safetensors_header.read_tensors(file)
            except ArtifactRefused as error:
                file.seek(0)
                raise _better(error, file.read(8)) from error
            check_finite(file, tensors)
    except ArtifactMissing as error:
        raise ArtifactRefused(f"not an adapter: {WEIGHTS_NAME} is missing (safetensors is the only format)") from error
    except ArtifactRefused as error:
        raise ArtifactRefused(f"{WEIGHTS_NAME}: {error}") from error
    return tensors


def check_weights(
    tensors: tuple[Tensor, ...], ranks: frozenset[int], base: BaseFacts | None, *, fan_in_fan_out: bool = False
) -> None:
    """Raise ArtifactRefused unless the tensors are LoRA pairs whose ranks are in `ranks` and, if `base` is given, that
    fit its modules."""
    halves = [_half(tensor) for tensor in tensors]
    for half in halves:
        if half.rank is not None and half.rank not in ranks:
            raise _refused(half, f"has rank {half.rank}; adapter_config.json says {sorted(ranks)}")
    _check_pairs(halves)
    if base is not None:
        for half in halves:
            _check_against(base, half, transposed=fan_in_fan_out)


def _better(error: ArtifactRefused, start: bytes) -> ArtifactRefused:
    """Return a better error if the file starts like another format. A pickle's first bytes can also be a valid
    safetensors length, so they only explain an error that was already found."""
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            return ArtifactRefused(f"it starts like {what}: save it as safetensors ({error})")
    return error


def _half(tensor: Tensor) -> _Half:
    match = _LORA_TENSOR.fullmatch(tensor.name)
    if match is None:
        raise ArtifactRefused(f"{WEIGHTS_NAME}: {tensor.name} is not a LoRA weight")
    kind = "embedding" if match["embedding"] else "linear"
    return _Half(tensor, match["module"], match["side"] or match["embedding"], kind)


def _check_pairs(halves: list[_Half]) -> None:
    found = {(half.module, half.kind, half.side): half for half in halves}
    for (module, kind, side), half in found.items():
        twin = found.get((module, kind, "B" if side == "A" else "A"))
        if twin is None:
            raise _refused(half, f"has no matching lora_{'B' if side == 'A' else 'A'}")
        if half.rank != twin.rank:
            raise _refused(half, f"has rank {half.rank}, and {twin.tensor.name} has {twin.rank}")


def _check_against(base: BaseFacts, half: _Half, *, transposed: bool) -> None:
    if _EXPERTS.search(half.module):
        return
    features = base.features_of(half.module)
    if features is None:
        raise _refused(half, f"is for {_absent(base, half.module)}: train on this base")
    if half.rank is None or features == UNKNOWN_FEATURES:
        return
    expected = {features["AB".index(half.side)]}
    if transposed:  # layers that store their weight transposed (fan_in_fan_out)
        expected.add(features["BA".index(half.side)])
    if half.features not in expected:
        direction = "in" if half.side == "A" else "out"
        raise _refused(
            half,
            f"has {half.features} {direction} features; {half.module} of the base has {min(expected)}: "
            "train on this base",
        )


def _absent(base: BaseFacts, module: str) -> str:
    layer = _LAYER.search(module)
    if layer is not None and int(layer[1]) >= base.layers:
        return f"layer {layer[1]}; the base has {base.layers}, numbered from 0"
    return f"the module {module}, which the base does not have"


def _refused(half: _Half, what: str) -> ArtifactRefused:
    return ArtifactRefused(f"{WEIGHTS_NAME}: {half.tensor.name} {what}")
