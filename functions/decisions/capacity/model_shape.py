"""Shape of a model: its parameters, and the KV cache bytes of a token.

    parameters    = vocabulary x hidden x (1 if the output is tied, else 2)
                  + layers x (attention + MLP x experts + router + norms)
    KV of a token = layers x 2 x KV heads x head size              values (grouped-query attention)
                  = layers x (latent + rope)                       values (multi-head latent attention)

Worked example (test_parameters_of_llama_8b): Llama 3.1 8B has 8,030,261,248 parameters and 65,536 values a token:
131,072 bytes at two a value; an engine on 24 GB that reports 1,952 blocks of 16 in 3.81 GiB has 130,986.

Shapes are read from a model's `config.json`. A few public ones are known by name (`KNOWN`), as published by their
authors, so that a fleet can be planned without the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


class ShapeUnknown(ValueError):
    """The shape of the model cannot be determined; the message says what to provide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int  # size of one expert, if there are experts
    vocabulary: int
    tied: bool = False  # the output layer is the embedding
    experts: int = 1
    experts_a_token: int = 1
    latent_values: int = 0  # values a token and layer of multi-head latent attention; 0 is grouped-query attention
    stated_parameters: int = 0  # published by the authors, if the formula does not hold
    stated_active: int = 0
    window_tokens: int = 0  # the longest context it was made for; 0: unknown
    has_cache: bool = True  # an encoder has no KV cache

    @property
    def embedding_parameters(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.stated_parameters or self._counted(self.experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes through."""
        return self.stated_active or (self.stated_parameters if self.experts == 1 else 0) or self._active()

    @property
    def kv_values_per_token(self) -> int:
        if not self.has_cache:
            return 0
        return self.layers * (self.latent_values or 2 * self.kv_heads * self.head_size)

    def _active(self) -> int:
        return self._counted(self.experts_a_token)

    def _counted(self, experts: int) -> int:
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        router = self.hidden * self.experts if self.experts > 1 else 0
        layer = attention + 3 * self.hidden * self.mlp * experts + router + 2 * self.hidden
        return self.embedding_parameters + self.layers * layer + self.hidden

    def adapter_values(self, rank: int, tensor_parallel: int = 1) -> int:
        """Return the number of values of one LoRA of this rank on all linear layers, on one accelerator; engines
        reserve it for each slot."""
        attention, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        parts = tensor_parallel
        split_after = [attention, kv, kv, self.mlp, self.mlp]  # q, k, v, gate, up: the output is divided
        split_before = [attention, self.mlp]  # o, down: the input is divided
        values = sum(self.hidden + out // parts for out in split_after)
        values += sum(into // parts + self.hidden for into in split_before)
        return self.layers * rank * values


def from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Return the shape in a Hugging Face `config.json`; ShapeUnknown names what is missing."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        config = {**config, **inner}

    def number(*keys: str, default: int | None = None) -> int:
        for key in keys:
            value = config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        if default is None:
            raise ShapeUnknown(f"{name}: config.json has no {keys[0]}, a whole number above 0")
        return default

    heads = number("num_attention_heads")
    hidden = number("hidden_size")
    experts = number("num_local_experts", "num_experts", "n_routed_experts", default=1)
    latent = number("kv_lora_rank", default=0)
    return ModelShape(
        name=name,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_size=number("head_dim", default=max(1, hidden // heads)),
        mlp=number(*(("moe_intermediate_size",) if experts > 1 else ()), "intermediate_size"),
        vocabulary=number("vocab_size"),
        tied=config.get("tie_word_embeddings", False) is True,
        experts=experts,
        experts_a_token=number("num_experts_per_tok", default=1),
        latent_values=latent + number("qk_rope_head_dim", default=0) if latent else 0,
        window_tokens=number("max_position_embeddings", default=0),
        has_cache=not any("Roberta" in each or "Bert" in each for each in _texts(config.get("architectures"))),
    )


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def known_shape(text: str) -> ModelShape:
    """Return the public model with the longest name contained in `text` (the last part of a storage URI); ShapeUnknown
    if there is none."""
    plain = text.lower().replace("_", "-").replace("meta-", "")
    found = [name for name in KNOWN if name in plain]
    if not found:
        raise ShapeUnknown(
            f"the shape of {text!r} is not known: give its directory with config.json (--model-dir), "
            f"or the annotation shoal.dev/architecture with one of {', '.join(sorted(KNOWN))}"
        )
    return KNOWN[max(found, key=len)]


def _llama(name: str, layers: int, hidden: int, mlp: int) -> ModelShape:
    return ModelShape(
        name=name, layers=layers, hidden=hidden, heads=hidden // 128, kv_heads=8, head_size=128, mlp=mlp,
        vocabulary=128_256, window_tokens=8192 if name.startswith("llama-3-") else 131_072,
    )  # fmt: skip


KNOWN = MappingProxyType(
    {
        each.name: each
        for each in (
            _llama("llama-3-8b", 32, 4096, 14_336),
            _llama("llama-3.1-8b", 32, 4096, 14_336),
            _llama("llama-3-70b", 80, 8192, 28_672),
            _llama("llama-3.1-70b", 80, 8192, 28_672),
            _llama("llama-3.3-70b", 80, 8192, 28_672),
            _llama("llama-3.1-405b", 126, 16_384, 53_248),
            ModelShape(name="qwen3-8b", layers=36, hidden=4096, heads=32, kv_heads=8, head_size=128, mlp=12_288,
                       vocabulary=151_936, window_tokens=40_960),
            ModelShape(name="qwen3-32b", layers=64, hidden=5120, heads=64, kv_heads=8, head_size=128, mlp=25_600,
                       vocabulary=151_936, window_tokens=40_960),
            ModelShape(name="qwen3-30b-a3b", layers=48, hidden=2048, heads=32, kv_heads=4, head_size=128, mlp=768,
                       vocabulary=151_936, experts=128, experts_a_token=8, window_tokens=40_960),
            ModelShape(name="qwen2.5-7b", layers=28, hidden=3584, heads=28, kv_heads=4, head_size=128, mlp=18_944,
                       vocabulary=152_064, window_tokens=32_768),
            ModelShape(name="qwen2.5-72b", layers=80, hidden=8192, heads=64, kv_heads=8, head_size=128, mlp=29_568,
                       vocabulary=152_064, window_tokens=32_768),
            ModelShape(name="mistral-7b", layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, mlp=14_336,
                       vocabulary=32_768, window_tokens=32_768),
            ModelShape(name="mixtral-8x7b", layers=32, hidden=4096, heads=32, kv_heads=8, head_size=128, mlp=14_336,
                       vocabulary=32_000, experts=8, experts_a_token=2, window_tokens=32_768),
            ModelShape(name="deepseek-v3", layers=61, hidden=7168, heads=128, kv_heads=128, head_size=128, mlp=2048,
                       vocabulary=129_280, experts=256, experts_a_token=8, latent_values=576,
                       stated_parameters=671_000_000_000, stated_active=37_000_000_000, window_tokens=163_840),
            ModelShape(name="smollm2-135m", layers=30, hidden=576, heads=9, kv_heads=3, head_size=64, mlp=1536,
                       vocabulary=49_152, tied=True, window_tokens=8192),
            ModelShape(name="bge-m3", layers=24, hidden=1024, heads=16, kv_heads=16, head_size=64, mlp=4096,
                       vocabulary=250_002, tied=True, stated_parameters=568_000_000, window_tokens=8194,
                       has_cache=False),
        )
    }
)  # fmt: skip
