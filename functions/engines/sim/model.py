"""The served model: its names, its tokenizer and template, and the adapters that the front end knows by name.

The table of adapters belongs to the front end (vLLM's OpenAIServingModels): loading adds a name, unloading removes
it. A name that is loaded again gets a new id, so running requests keep the adapter they started with. `adapters`
manages the location of the weights.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from functions.engines.sim.adapters import AdapterId
from functions.engines.sim.refusals import EngineRefusal, adapter_broken, adapter_missing, bad_adapter_call
from functions.engines.sim.reply import adapter_mark
from functions.engines.sim.templates import ChatTemplate, load_template
from functions.engines.sim.tokenizer import BuiltinTokenizer, ModelTokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class Adapter:
    adapter_id: AdapterId
    name: str
    path: str
    mark: str


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """Names and files of the served model. /v1/models and the metrics show `names[0]`; all names are accepted."""

    names: tuple[str, ...]
    root: str
    tokenizer: Tokenizer
    template: ChatTemplate
    mark: str = ""  # prefix of its answers: `shoal_mark` of its config.json, to distinguish bases

    @classmethod
    def load(cls, root: str, names: tuple[str, ...]) -> "SimulatedModel":
        directory = Path(root)
        mark = str(model_config(root).get("shoal_mark", ""))
        if not (directory / "tokenizer.json").is_file():
            return cls(names or (root,), root, BuiltinTokenizer(), ChatTemplate.chatml(), mark)
        config_file = directory / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(config_file.read_text()) if config_file.is_file() else {}
        eos = config.get("eos_token") or "<|im_end|>"
        tokenizer = ModelTokenizer.load(directory, eos_token=eos["content"] if isinstance(eos, dict) else str(eos))
        return cls(names or (root,), root, tokenizer, load_template(directory, config), mark)


def model_config(root: str) -> dict[str, Any]:
    """Return the model's config.json; empty if there is none."""
    file = Path(root) / "config.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}


class AdapterTable:
    def __init__(self, *, base_names: tuple[str, ...], max_rank: int) -> None:
        self._base_names = base_names
        self._max_rank = max_rank
        self._ids = count(1)
        self._by_name: dict[str, Adapter] = {}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._by_name.values()))

    def get(self, name: str) -> Adapter | None:
        return self._by_name.get(name)

    def read(self, name: str, path: str, *, in_place: bool) -> Adapter:
        """Check and read an adapter from disk, without registering it. Raise EngineRefusal with vLLM's answer."""
        self._check_name(name, path, in_place=in_place)
        directory = Path(path).expanduser()
        try:
            config = json.loads((directory / "adapter_config.json").read_text())
            mark = adapter_mark(name, directory)
        except FileNotFoundError as error:
            raise adapter_missing(f"Loading lora {name} failed: No adapter found for {path}") from error
        except (OSError, ValueError) as error:
            raise adapter_broken(str(error)) from error
        _check_config(config, self._max_rank)
        if not any(directory.glob("adapter_model.*")):
            raise adapter_broken(f"{directory} doesn't contain tensors")
        previous = self._by_name.get(name)
        return Adapter(previous.adapter_id if previous else AdapterId(next(self._ids)), name, path, mark)

    def register(self, adapter: Adapter) -> None:
        self._by_name[adapter.name] = adapter

    def forget(self, name: str) -> None:
        if not name:
            raise bad_adapter_call("'lora_name' needs to be provided to unload a LoRA adapter.")
        if self._by_name.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise EngineRefusal(message, kind="NotFoundError", status=404)

    def _check_name(self, name: str, path: str, *, in_place: bool) -> None:
        if not name or not path:
            raise bad_adapter_call("Both 'lora_name' and 'lora_path' must be provided.")
        if name in self._base_names:
            raise bad_adapter_call(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self._by_name and not in_place:
            raise bad_adapter_call(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )


def _check_config(config: Mapping[str, Any], max_rank: int) -> None:
    """Raise the errors of vLLM's PEFTHelper that adapters of this platform can cause."""
    missing = {"r", "lora_alpha", "target_modules"} - set(config)
    if missing:
        raise adapter_broken(f"Missing required configuration fields: {missing}")
    problems = ["vLLM does not yet support DoRA."] if config.get("use_dora") else []
    problems += ["vLLM does not support LoRA bias (lora_bias)."] if config.get("lora_bias") else []
    rank = max([int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values())])
    if rank > max_rank:
        problems.append(f"LoRA rank {rank} is greater than max_lora_rank {max_rank}.")
    if config.get("bias", "none") != "none":
        problems.append("Adapter bias is not supported.")
    if problems:
        raise adapter_broken(" ".join(problems))
