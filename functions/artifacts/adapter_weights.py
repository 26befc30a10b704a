"""adapter_model.safetensors: LoRA pairs and nothing else, of the ranks that the configuration says, fitting the base.

    base_model.model.<module>.lora_A.weight            [rank, in_features]
    base_model.model.<module>.lora_B.weight            [out_features, rank]
    base_model.model.<module>.lora_embedding_A / _B    [rank, vocabulary] / [hidden, rank]

An engine that is given a pair of another base fails inside its step, or answers nonsense where the sizes happen to fit;
with the base's facts at hand, both are refused before. Worked example (test_the_pair_must_fit_the_base): q_proj of 576
to 576 features takes A of [4, 576] and B of [576, 4] at rank 4.
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

# NaN and infinity among an adapter's weights: training that diverged, refused before it answers anybody.
#
# A value is one of the two if its exponent bits are all ones. In little-endian floats these lie in the last byte (and
# the one before it), so the last bytes alone are looked at first, at the speed of a slice: sound weights never have
# them all set (that would be 1.7e38 and more in F32 and BF16, 32768 and more in F16). Only where they are is the value
# looked at. Worked example (test_one_bad_value_is_found_wherever_it_is): BF16 NaN is `c0 7f`; its last byte is one of
# 7f and ff.
#
# Files up to FULL_SCAN_BYTES, which is every adapter in use, are looked at whole; of larger ones as many bytes, spread
# evenly over the tensors, each at its beginning, middle and end. One block is in memory at a time.


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


WEIGHTS_NAME = "adapter_model.safetensors"
# First bytes of what else is passed around under this name: pickles (protocols 2-5), zip (torch.save), GGUF, gzip.
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
_EXPERTS = re.compile(r"\.experts(?:\.base_layer)?$")  # fused experts: their shapes are the engine's affair


@dataclass(frozen=True, slots=True)
class _Half:
    """One of the two matrices of a module."""

    tensor: Tensor
    module: str
    side: str  # A or B
    kind: str  # what the pair shares: the module, and whether it is an embedding

    @property
    def rank(self) -> int | None:
        """None for convolutions and fused experts: their rank lies elsewhere, and the engine checks it."""
        shape = self.tensor.shape
        if len(shape) != 2:
            return None
        return shape[0] if self.side == "A" else shape[1]

    @property
    def features(self) -> int:
        return self.tensor.shape[1] if self.side == "A" else self.tensor.shape[0]


def read_weights(directory: Path) -> tuple[Tensor, ...]:
    """The tensors of the adapter in `directory`, whose values are numbers; ArtifactRefused says what is wrong."""
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
    """ArtifactRefused unless the tensors are LoRA pairs of these ranks, of this base's modules where it is given."""
    halves = [_half(tensor) for tensor in tensors]
    for half in halves:
        if half.rank is not None and half.rank not in ranks:
            raise _refused(half, f"has rank {half.rank}; adapter_config.json says {sorted(ranks)}")
    _check_pairs(halves)
    if base is not None:
        for half in halves:
            _check_against(base, half, transposed=fan_in_fan_out)


def _better(error: ArtifactRefused, start: bytes) -> ArtifactRefused:
    """A pickle's first bytes can be a safetensors length too, so they only explain what was refused already."""
    for magic, what in _FOREIGN.items():
        if start.startswith(magic):
            return ArtifactRefused(f"it begins like {what}: save it as safetensors ({error})")
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
            raise _refused(half, f"has no lora_{'B' if side == 'A' else 'A'} beside it")
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
    if transposed:  # layers that keep their weight the other way round (fan_in_fan_out)
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
    return f"the module {module}, which the base has not"


def _refused(half: _Half, what: str) -> ArtifactRefused:
    return ArtifactRefused(f"{WEIGHTS_NAME}: {half.tensor.name} {what}")
