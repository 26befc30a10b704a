"""adapter_model.safetensors: LoRA pairs and nothing else, of the ranks that the configuration says, fitting the base.

    base_model.model.<module>.lora_A.weight            [rank, in_features]
    base_model.model.<module>.lora_B.weight            [out_features, rank]
    base_model.model.<module>.lora_embedding_A / _B    [rank, vocabulary] / [hidden, rank]

An engine that is given a pair of another base fails inside its step, or answers nonsense where the sizes happen to fit;
with the base's facts at hand, both are refused before. Worked example (test_the_pair_must_fit_the_base): q_proj of 576
to 576 features takes A of [4, 576] and B of [576, 4] at rank 4.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from functions.artifacts import directories, safetensors_header
from functions.artifacts.base_facts import UNKNOWN_FEATURES, BaseFacts
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused
from functions.artifacts.finite import check_finite
from functions.artifacts.safetensors_header import Tensor

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
