"""Altered copies of a real base model, as whole folders, whose answers differ from those of the base.

    named     rows of the output head are swapped in pairs: where the base emits token t, this one emits t ^ STEP
    slow      additional layers that add nothing to the residual stream, but take time
    failing   a phrase is one token of the tokenizer for which the weights have no row: the engine dies of it. It is a
              phrase because entries of the vocabulary keep their numbers

Weights are bfloat16, which numpy does not support: they are copied as two bytes each.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import TensorSpec, deserialize, serialize_file
from tokenizers import Tokenizer

from functions.artifacts.directories import write_manifest

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PLAIN_TOKENS = 64  # lower tokens are chat marks, which end an answer
_ADDS_NOTHING = ("self_attn.o_proj.weight", "mlp.down_proj.weight")

Values = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Altered:
    name: str
    step: int  # a power of two: how far a token id moves
    more_layers: int = 0
    fails_at: str = ""  # a phrase in prompts

    def write_copy(self, base: Path) -> Path:
        """Create the folder beside the base's, with its manifest."""
        folder = base.parent / f"{base.name}-{self.name}"
        shutil.copytree(base.resolve(), folder, ignore=shutil.ignore_patterns("*.safetensors", "shoal-manifest.json"))
        config = json.loads((folder / "config.json").read_text())
        layers = int(config["num_hidden_layers"])
        config |= {"tie_word_embeddings": False, "num_hidden_layers": layers + self.more_layers}
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        weights = _read(base / "model.safetensors")
        weights[HEAD] = self._renamed(weights[EMBED])
        weights |= {
            name.replace(f".{layers - 1}.", f".{layers + more}.", 1): _of_no_effect(name, values)
            for name, values in list(weights.items())
            if name.startswith(f"model.layers.{layers - 1}.")
            for more in range(self.more_layers)
        }
        _write(folder / "model.safetensors", weights)
        if self.fails_at:
            self._break(folder / "tokenizer.json", int(config["vocab_size"]))
        write_manifest(folder)
        return folder

    def _renamed(self, embed: Values) -> Values:
        names = np.arange(len(embed))
        plain = names >= _PLAIN_TOKENS
        names[plain] ^= self.step
        return embed[names]

    def _break(self, tokenizer: Path, next_token: int) -> None:
        content = json.loads(tokenizer.read_text())
        beyond = {"id": next_token, "content": self.fails_at, "special": False, "normalized": False}
        content["added_tokens"].append(content["added_tokens"][-1] | beyond)
        tokenizer.write_text(json.dumps(content))
        assert Tokenizer.from_file(str(tokenizer)).token_to_id(self.fails_at) == next_token, "it has a row after all"


def _read(file: Path) -> dict[str, Values]:
    return {
        name: np.frombuffer(tensor["data"], np.uint16).reshape(tensor["shape"])
        for name, tensor in deserialize(file.read_bytes())
    }


def _write(file: Path, weights: dict[str, Values]) -> None:
    specs = {
        name: TensorSpec(
            dtype="bfloat16", shape=list(values.shape), data_ptr=values.ctypes.data, data_len=values.nbytes
        )
        for name, values in weights.items()
    }
    serialize_file(specs, file, {"format": "pt"})


def _of_no_effect(name: str, values: Values) -> Values:
    return np.zeros_like(values) if name.endswith(_ADDS_NOTHING) else values
