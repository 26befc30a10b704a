"""Whether a directory is a LoRA adapter that the engine can serve: checked before the engine may see it.

Safetensors only: formats that carry code (pickle and everything built on it) are refused by suffix and by first
bytes. What vLLM's PEFT reader would refuse is refused here, in words for the person who trained it. `rank_pattern`
and `target_modules`, which the engine uses as regular expressions, must be plain names: a tenant's pattern with
nested quantifiers would stop the whole engine.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from functions.artifacts import directories, safetensors_header
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME
from functions.artifacts.safetensors_header import Tensor

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
CONFIG_MAX_BYTES = 256 * 1024
DEFAULT_MAX_RANK = 16  # vLLM's --max-lora-rank
_ALLOWED_SUFFIXES = (".json", ".md", ".txt")
# The first bytes of pickle protocols 2-5, zip (torch.save), GGUF, ELF, and gzip.
_FORBIDDEN_MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"GGUF", b"\x7fELF", b"\x1f\x8b")
# Initialisations that only set the starting point; the others (PiSSA, OLoRA, LoftQ, CorDA) alter the base's weights.
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
_PLAIN_MODULE = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
_LORA_TENSOR = re.compile(r"base_model\.model\..+\.lora_(?P<side>A|B|embedding_A|embedding_B)(?:\.weight)?")


class PeftConfig(msgspec.Struct, frozen=True):
    """What we read of adapter_config.json; PEFT adds fields with every release, so unknown ones are ignored."""

    peft_type: str
    r: int
    lora_alpha: float
    target_modules: list[str] | str
    base_model_name_or_path: str | None = None
    bias: str = "none"
    use_dora: bool = False
    lora_bias: bool = False
    init_lora_weights: bool | str | None = True
    modules_to_save: list[str] | None = None
    alora_invocation_tokens: list[int] | None = None
    layer_replication: list[Any] | None = None
    use_bdlora: dict[str, Any] | bool | None = None
    use_qalora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What the checks learnt."""

    rank: int
    target_modules: tuple[str, ...]
    tensors: int
    weights_bytes: int


def check_adapter(directory: Path, *, max_rank: int = DEFAULT_MAX_RANK) -> AdapterFacts:
    """The adapter's facts; ArtifactRefused with the reason in words. Blocks on the disk."""
    _check_files(directory)
    config = _read_config(directory)
    problems = list(_problems(config, max_rank))
    if problems:
        raise ArtifactRefused(f"{CONFIG_NAME}: " + "; ".join(problems))
    tensors = _read_weights(directory)
    ranks = {config.r, *(config.rank_pattern or {}).values()}
    for tensor in tensors:
        _check_tensor(tensor, ranks)
    _check_pairs(tensors)
    modules = (config.target_modules,) if isinstance(config.target_modules, str) else tuple(config.target_modules)
    return AdapterFacts(
        rank=max(ranks),
        target_modules=modules,
        tensors=len(tensors),
        weights_bytes=sum(tensor.size_bytes for tensor in tensors),
    )


def _check_files(directory: Path) -> None:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name in (CONFIG_NAME, WEIGHTS_NAME, MANIFEST_NAME):
            continue
        if path.is_symlink() or not path.is_file() or path.suffix.lower() not in _ALLOWED_SUFFIXES:
            raise ArtifactRefused(
                f"{name} does not belong in an adapter: only {CONFIG_NAME}, {WEIGHTS_NAME} and plain "
                f"{' '.join(_ALLOWED_SUFFIXES)} files"
            )
        with directories.open_plain(path) as file:
            start = file.read(8)
        if start.startswith(_FORBIDDEN_MAGIC):
            raise ArtifactRefused(f"{name} is not what its name says: it begins like an archive or a program")


def _read_config(directory: Path) -> PeftConfig:
    try:
        with directories.open_plain(directory / CONFIG_NAME) as file:
            document = file.read(CONFIG_MAX_BYTES + 1)
    except ArtifactMissing as error:
        raise ArtifactRefused(f"not an adapter: {CONFIG_NAME} is missing") from error
    if len(document) > CONFIG_MAX_BYTES:
        raise ArtifactRefused(f"{CONFIG_NAME} is over {CONFIG_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(document, type=PeftConfig)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactRefused(f"{CONFIG_NAME} is not a PEFT configuration: {error}") from error


def _problems(config: PeftConfig, max_rank: int) -> list[str]:
    saved = [name for name in config.modules_to_save or [] if name not in ("classifier", "score")]
    init = config.init_lora_weights
    rank = max([config.r, *(config.rank_pattern or {}).values()])
    patterns = [*(config.rank_pattern or {}), *(config.alpha_pattern or {})]
    modules = [config.target_modules] if isinstance(config.target_modules, str) else config.target_modules
    found = {
        f"peft_type {config.peft_type[:40]!r} is not LORA": config.peft_type != "LORA",
        f"rank {config.r} is not positive": min([config.r, *(config.rank_pattern or {}).values()]) < 1,
        f"rank {rank} is over the engine's max_lora_rank {max_rank}: train with r <= {max_rank}": rank > max_rank,
        f"bias {config.bias[:40]!r} is not supported: train with bias='none'": config.bias != "none",
        "DoRA (use_dora) is not supported: train a plain LoRA": config.use_dora,
        "lora_bias is not supported: train without it": config.lora_bias,
        f"modules_to_save {saved} cannot be served: train only LoRA weights": bool(saved),
        f"init_lora_weights {init!r} alters the base model's weights: convert to a plain LoRA": (
            isinstance(init, str) and init.lower() not in _PLAIN_INITS
        ),
        "activated LoRA (alora_invocation_tokens) is not supported": bool(config.alora_invocation_tokens),
        "layer_replication is not supported": bool(config.layer_replication),
        "block-diagonal LoRA (use_bdlora) is not supported": bool(config.use_bdlora),
        "QALoRA (use_qalora) is not supported": config.use_qalora,
        "target_modules names no module": not modules,
        "target_modules, rank_pattern and alpha_pattern must be plain module names, not expressions": not all(
            _PLAIN_MODULE.fullmatch(name) for name in (*modules, *patterns)
        ),
    }
    return [text for text, wrong in found.items() if wrong]


def _read_weights(directory: Path) -> tuple[Tensor, ...]:
    try:
        with directories.open_plain(directory / WEIGHTS_NAME) as file:
            tensors = safetensors_header.read_tensors(file)
            safetensors_header.check_finite(file, tensors)
    except ArtifactMissing as error:
        raise ArtifactRefused(f"not an adapter: {WEIGHTS_NAME} is missing (safetensors is the only format)") from error
    except ArtifactRefused as error:
        raise ArtifactRefused(f"{WEIGHTS_NAME}: {error}") from error
    return tensors


def _check_tensor(tensor: Tensor, ranks: set[int]) -> None:
    match = _LORA_TENSOR.fullmatch(tensor.name)
    if match is None:
        raise ArtifactRefused(f"{WEIGHTS_NAME}: {tensor.name} is not a LoRA weight")
    if len(tensor.shape) != 2:
        return  # convolutions and fused experts: their rank lies elsewhere, and the engine checks it against the base
    rank = tensor.shape[0] if match["side"] in ("A", "embedding_A") else tensor.shape[1]
    if rank not in ranks:
        raise ArtifactRefused(f"{WEIGHTS_NAME}: {tensor.name} has rank {rank}; {CONFIG_NAME} says {sorted(ranks)}")


def _check_pairs(tensors: tuple[Tensor, ...]) -> None:
    names = {tensor.name for tensor in tensors}
    for name in names:
        twin = name.replace(".lora_A", ".lora_B") if ".lora_A" in name else name.replace(".lora_B", ".lora_A")
        if "embedding" not in name and twin not in names:
            raise ArtifactRefused(f"{WEIGHTS_NAME}: {name} has no {twin}")
