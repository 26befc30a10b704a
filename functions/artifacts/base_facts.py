"""Facts of a base model without its weights: names and sizes of the modules that adapters are checked against.

    BaseFacts(names, layers, modules)      modules: "model.layers.0.self_attn.q_proj" -> (in_features, out_features)

They are read from the base's directory: `config.json`, and the header of every safetensors file (never a tensor). A
deployment whose registry has no access to the weights ships the facts as one small JSON document (`encode`,
`decode`). Worked example (test_worked_example): a Linear of 576 inputs and 192 outputs is stored as a weight of shape
[192, 576] and becomes (576, 192); an embedding of 49152 tokens is stored as [49152, 576] and becomes (49152, 576).
"""

import hashlib
import json
import struct
from pathlib import Path
from typing import Annotated, Any

import msgspec

from functions.artifacts import directories
from functions.artifacts.errors import ArtifactMissing, ArtifactRefused

CONFIG_NAME = "config.json"
FACTS_NAME = "shoal-base-facts.json"  # `facts_of` prefers this file to the weights
FACTS_MAX_BYTES = 32 * 1024 * 1024
UNKNOWN_FEATURES = (0, 0)  # packed or fused weights: the module exists, but its shape does not show its features
_CONFIG_MAX_BYTES = 1024 * 1024
_HEADER_MAX_BYTES = 64 * 1024 * 1024  # a mixture of experts with 100,000 tensors needs about 15 MB
_MAX_FILES = 2048
_MAX_MODULES = 500_000
_MAX_NAMES = 64
_PLAIN_TYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8")
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embeddings", "tok_embeddings")

Stamp = tuple[tuple[str, int, int], ...]  # name, mtime_ns and bytes of every file that facts are read from

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Features = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class BaseFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts of one base model that adapters depend on."""

    names: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=_MAX_NAMES)]
    layers: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    modules: Annotated[dict[_Name, tuple[_Features, _Features]], msgspec.Meta(max_length=_MAX_MODULES)]

    def has_name(self, name: str) -> bool:
        """Return True if `name` means this base. Only the last part of a path or repository id counts, in any case."""
        return _last_part(name) in {_last_part(known) for known in self.names}

    def features_of(self, module: str) -> tuple[int, int] | None:
        """Return the numbers of input and output features of a module by its full name, UNKNOWN_FEATURES if its shape
        is unclear, or None if the base has no such module."""
        return self.modules.get(module)

    def has_target(self, target: str) -> bool:
        """Return True if a module is named `target` or ends in `.target`, as PEFT matches `target_modules`."""
        return target in self.modules or any(module.endswith("." + target) for module in self.modules)

    def targets(self) -> tuple[str, ...]:
        """Return the distinct last parts of all module names, sorted, for messages about `target_modules`."""
        return tuple(sorted({module.rpartition(".")[2] for module in self.modules}))


def facts_of(directory: Path, *, names: tuple[str, ...]) -> BaseFacts:
    """Return the facts of the base model in `directory`; raise ArtifactRefused if they cannot be read. `names` are
    further names of the base. A facts document in the directory is preferred to the weights. Blocks on the disk."""
    try:
        with directories.open_plain(directory / FACTS_NAME) as file:
            shipped = decode(file.read(FACTS_MAX_BYTES + 1))
    except ArtifactMissing:
        return _read_model(directory, names)
    return msgspec.structs.replace(shipped, names=_distinct((*names, *shipped.names)))


def stamp_of(directory: Path) -> Stamp:
    """Return the names, modification times (ns) and sizes of the files that `facts_of` reads, without opening one.
    Missing files are left out; raise ArtifactRefused if a file's status cannot be read."""
    found = []
    for path in sorted((directory / FACTS_NAME, directory / CONFIG_NAME, *directory.glob("*.safetensors"))):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ArtifactRefused(f"{path.name} cannot be read: {error.strerror}") from error
        found.append((path.name, stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def fingerprint_of(facts: BaseFacts) -> str:
    """Return a hash that is equal only for equal facts."""
    return hashlib.sha256(encode(facts)).hexdigest()


def encode(facts: BaseFacts) -> bytes:
    """Return the facts as one JSON document; equal facts have equal bytes."""
    return msgspec.json.encode(facts, order="deterministic")


def decode(document: bytes) -> BaseFacts:
    """Decode a facts document; raise ArtifactRefused if it is invalid."""
    if len(document) > FACTS_MAX_BYTES:
        raise ArtifactRefused(f"{FACTS_NAME} is over {FACTS_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(document, type=BaseFacts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactRefused(f"{FACTS_NAME} is not a document of base facts: {error}") from error


def _read_model(directory: Path, names: tuple[str, ...]) -> BaseFacts:
    config = _read_config(directory)
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise ArtifactRefused(f"{directory.name} has no safetensors file and no {FACTS_NAME}")
    if len(weights) > _MAX_FILES:
        raise ArtifactRefused(f"{directory.name} has {len(weights)} safetensors files; at most {_MAX_FILES}")
    modules: dict[str, tuple[int, int]] = {}
    for path in weights:
        modules.update(_modules_in(path))
        if len(modules) > _MAX_MODULES:
            raise ArtifactRefused(f"{directory.name} has more than {_MAX_MODULES} modules")
    _add_tied_head(config, modules)
    own_name = config.get("_name_or_path")
    known = (*names, own_name) if isinstance(own_name, str) and own_name else names
    return BaseFacts(names=_distinct(known), layers=_layers(config), modules=modules)


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        with directories.open_plain(directory / CONFIG_NAME) as file:
            document = file.read(_CONFIG_MAX_BYTES + 1)
    except ArtifactMissing as error:
        raise ArtifactRefused(f"{directory.name} is not a model: {CONFIG_NAME} is missing") from error
    if len(document) > _CONFIG_MAX_BYTES:
        raise ArtifactRefused(f"{CONFIG_NAME} is over {_CONFIG_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(document, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ArtifactRefused(f"{CONFIG_NAME} is not a model's configuration: {error}") from error


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's section of config.json: `text_config`, in which multimodal models nest it, or else
    `config` itself."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _layers(config: dict[str, Any]) -> int:
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        value = _text_config(config).get(key)
        if type(value) is int and 0 <= value <= 10_000:
            return value
    raise ArtifactRefused(f"{CONFIG_NAME} does not say how many layers the model has (num_hidden_layers)")


def _add_tied_head(config: dict[str, Any], modules: dict[str, tuple[int, int]]) -> None:
    """Add `lm_head` to `modules` if it is tied to the only embedding: it has no tensor of its own, but adapters can
    target it."""
    tied = config.get("tie_word_embeddings", _text_config(config).get("tie_word_embeddings", False))
    embeddings = [sizes for name, sizes in modules.items() if name.rpartition(".")[2] in _EMBEDDINGS]
    if tied is True and len(embeddings) == 1:
        vocabulary, hidden = embeddings[0]
        modules.setdefault("lm_head", (hidden, vocabulary))


def _modules_in(path: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for tensor, entry in _read_header(path).items():
        if tensor == "__metadata__" or not isinstance(entry, dict):
            continue
        sizes = _features(tensor, entry)
        if sizes is not None:
            module, _, parameter = tensor.rpartition(".")
            name = module if parameter in ("weight", "qweight", "weight_packed") else tensor
            if name:
                found[name] = sizes
    return found


def _features(tensor: str, entry: dict[str, Any]) -> tuple[int, int] | None:
    """Return the input and output features of a weight tensor, None for tensors that no adapter can target (norms,
    biases, scales), or UNKNOWN_FEATURES for quantized and other unusual ones. Raise ArtifactRefused for an impossible
    shape."""
    module, _, parameter = tensor.rpartition(".")
    shape, dtype = entry.get("shape"), entry.get("dtype")
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= 2**40 for size in shape):
        raise ArtifactRefused(f"tensor {tensor[:200]!r} has an impossible shape")
    if len(shape) < 2 or parameter in ("bias", "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv"):
        return None
    if len(shape) != 2 or parameter != "weight" or dtype not in _PLAIN_TYPES:
        return UNKNOWN_FEATURES
    rows, columns = shape
    return (rows, columns) if module.rpartition(".")[2] in _EMBEDDINGS else (columns, rows)


def _read_header(path: Path) -> dict[str, Any]:
    """Return the safetensors header of a base model as a dict. Every dtype is accepted, since only names and shapes are
    used. Raise ArtifactRefused if it is not a JSON object."""
    with directories.open_plain(path) as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ArtifactRefused(f"{path.name} is not a safetensors file: shorter than 8 bytes")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if not 2 <= header_bytes <= _HEADER_MAX_BYTES:
            raise ArtifactRefused(f"{path.name} is not a safetensors file: header of {header_bytes} bytes")
        document = file.read(header_bytes)
    try:
        header = json.loads(document.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtifactRefused(f"{path.name}: the safetensors header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ArtifactRefused(f"{path.name}: the safetensors header is not a JSON object")
    return header


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:_MAX_NAMES]


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
