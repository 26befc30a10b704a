"""Check adapter_config.json, PEFT's description of an adapter.

A configuration that vLLM's PEFT reader would reject is rejected here, with a message for the person who trained the
adapter. All problems are reported together. `rank_pattern` and `target_modules` must be plain names, because the
engine uses them as regular expressions: a tenant's pattern with nested quantifiers would stop the whole engine.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from functions.artifacts import directories
from functions.artifacts.base_facts import BaseFacts
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused
from functions.artifacts.strict_json import strict_object

CONFIG_NAME = "adapter_config.json"
CONFIG_MAX_BYTES = 256 * 1024
_CONFIG_MAX_MARKS = 20_000
_SHOWN = 6
# Initialisations that only set the starting point; the others (PiSSA, OLoRA, LoftQ, CorDA) alter the base's weights.
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
_PLAIN_MODULE = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
_ALL_LINEAR = "all-linear"  # PEFT's own name for all linear modules
_Rank = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class PeftConfig(msgspec.Struct, frozen=True):
    """Fields of adapter_config.json that the checks use. Unknown fields are ignored: PEFT adds some with every
    release."""

    peft_type: str
    r: _Rank
    lora_alpha: float
    target_modules: list[str] | str
    base_model_name_or_path: str | None = None
    bias: str = "none"
    use_dora: bool = False
    lora_bias: bool = False
    fan_in_fan_out: bool = False
    init_lora_weights: bool | str | None = True
    modules_to_save: list[str] | None = None
    alora_invocation_tokens: list[int] | None = None
    layer_replication: list[Any] | None = None
    use_bdlora: dict[str, Any] | bool | None = None
    use_qalora: bool = False
    rank_pattern: dict[str, _Rank] | None = None
    alpha_pattern: dict[str, float] | None = None
    auto_map: Any = None
    trust_remote_code: bool | None = None

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset({self.r, *(self.rank_pattern or {}).values()})

    @property
    def modules(self) -> tuple[str, ...]:
        return (self.target_modules,) if isinstance(self.target_modules, str) else tuple(self.target_modules)


def read_config(directory: Path) -> PeftConfig:
    """Read the configuration in `directory`. Raise ArtifactRefused if it is missing, too large, ambiguous or
    invalid."""
    try:
        with directories.open_plain(directory / CONFIG_NAME) as file:
            document = file.read(CONFIG_MAX_BYTES + 1)
    except ArtifactMissing as error:
        raise ArtifactRefused(f"not an adapter: {CONFIG_NAME} is missing") from error
    if len(document) > CONFIG_MAX_BYTES:
        raise ArtifactRefused(f"{CONFIG_NAME} is over {CONFIG_MAX_BYTES} bytes")
    try:
        strict_object(document, what="it", max_marks=_CONFIG_MAX_MARKS)
        return msgspec.json.decode(document, type=PeftConfig)
    except (ArtifactRefused, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactRefused(f"{CONFIG_NAME} is not a PEFT configuration: {error}") from error


def check_config(config: PeftConfig, *, max_rank: int, base: BaseFacts | None) -> None:
    """Raise ArtifactRefused with every problem that keeps the engine, or this base, from serving the adapter."""
    problems = list(_problems(config, max_rank))
    if base is not None:
        problems += _problems_with(base, config)
    if problems:
        raise ArtifactRefused(f"{CONFIG_NAME}: " + "; ".join(problems))


def _problems(config: PeftConfig, max_rank: int) -> Iterator[str]:
    saved = [name for name in config.modules_to_save or [] if name not in ("classifier", "score")]
    init = config.init_lora_weights
    rank = max(config.ranks)
    patterns = [*(config.rank_pattern or {}), *(config.alpha_pattern or {})]
    found = {
        f"peft_type {config.peft_type[:40]!r} is not LORA": config.peft_type != "LORA",
        f"rank {min(config.ranks)} is not positive": min(config.ranks) < 1,
        f"rank {rank} is over the limit of {max_rank}: train with r <= {max_rank}": rank > max_rank,
        f"bias {config.bias[:40]!r} is not supported: train with bias='none'": config.bias != "none",
        "DoRA (use_dora) is not supported: train a plain LoRA": config.use_dora,
        "lora_bias is not supported: train without it": config.lora_bias,
        f"modules_to_save {saved[:_SHOWN]} cannot be served: train only LoRA weights": bool(saved),
        f"init_lora_weights {str(init)[:40]!r} alters the base model's weights: convert to a plain LoRA": (
            isinstance(init, str) and init.lower() not in _PLAIN_INITS
        ),
        "activated LoRA (alora_invocation_tokens) is not supported": bool(config.alora_invocation_tokens),
        "layer_replication is not supported": bool(config.layer_replication),
        "block-diagonal LoRA (use_bdlora) is not supported": bool(config.use_bdlora),
        "QALoRA (use_qalora) is not supported": config.use_qalora,
        "auto_map and trust_remote_code would run code: remove them": bool(config.auto_map or config.trust_remote_code),
        "target_modules names no module": not config.modules,
        "target_modules, rank_pattern and alpha_pattern must be plain module names, not expressions": not all(
            _PLAIN_MODULE.fullmatch(name) for name in (*config.modules, *patterns)
        ),
    }
    return (text for text, wrong in found.items() if wrong)


def _problems_with(base: BaseFacts, config: PeftConfig) -> list[str]:
    problems = []
    trained_on = config.base_model_name_or_path
    if trained_on and not base.has_name(trained_on):
        problems.append(
            f"base_model_name_or_path {trained_on[:200]!r} is not the base model {_shown(base.names)}: register the "
            "adapter under the base that it was trained on, or correct the name if it is the same model"
        )
    absent = [name for name in config.modules if name != _ALL_LINEAR and not base.has_target(name)]
    if absent:
        problems.append(
            f"target_modules {_shown(absent)} are not modules of the base, which has {_shown(base.targets(), 16)}: "
            "train on this base"
        )
    return problems


def _shown(names: "tuple[str, ...] | list[str]", most: int = _SHOWN) -> str:
    more = ", …" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more
