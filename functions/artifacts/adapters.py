"""Check that a directory is a LoRA adapter that the engine can serve, before the engine sees it.

    1 the files: names that belong in an adapter, text that is text    here
    2 adapter_config.json: one meaning, nothing that vLLM refuses      adapter_config
    3 adapter_model.safetensors: a sound header, finite values, pairs  safetensors_header, adapter_weights
    4 both against the base, where its facts are known                 base_facts

Only safetensors is accepted. Formats that carry code (pickle and everything built on it) are rejected by suffix and
by content.
"""

import codecs
from dataclasses import dataclass
from pathlib import Path

from functions.artifacts import directories
from functions.artifacts.adapter_config import CONFIG_MAX_BYTES, CONFIG_NAME, check_config, read_config
from functions.artifacts.adapter_weights import WEIGHTS_NAME, check_weights, read_weights
from functions.artifacts.base_facts import BaseFacts
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import MANIFEST_NAME
from functions.artifacts.signatures import SIGNATURE_NAME

__all__ = [
    "CONFIG_MAX_BYTES", "CONFIG_NAME", "DEFAULT_MAX_RANK", "LARGE_TEXT_MAX_BYTES", "TEXT_MAX_BYTES", "WEIGHTS_NAME",
    "AdapterFacts", "check_adapter",
]  # fmt: skip

DEFAULT_MAX_RANK = 16  # vLLM's --max-lora-rank
TEXT_MAX_BYTES = 1024**2  # limit for a new adapter's texts (model cards, notes), which no engine reads
LARGE_TEXT_MAX_BYTES = 64 * 1024**2  # the largest tokenizers that PEFT saves with an adapter have 35 MB
LARGE_TEXTS = frozenset({
    "tokenizer.json", "vocab.json", "vocab.txt", "merges.txt",
    "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json",  # one line per added token
    "trainer_state.json",  # one line per logged step
})  # fmt: skip
_ALLOWED_SUFFIXES = (".json", ".md", ".txt")


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """Facts about an adapter that the checks found."""

    rank: int
    target_modules: tuple[str, ...]
    tensors: int
    weights_bytes: int


def check_adapter(
    directory: Path,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    base: BaseFacts | None = None,
    text_max_bytes: int = LARGE_TEXT_MAX_BYTES,
) -> AdapterFacts:
    """Check the adapter and return its facts; raise ArtifactRefused with the reason. Blocks on the disk.

    Without `base`, only the engine can find out that the adapter does not fit. `text_max_bytes` is TEXT_MAX_BYTES for
    new adapters. The default is higher, because an adapter that was accepted once stays servable: a version never
    changes.
    """
    _check_files(directory, text_max_bytes)
    config = read_config(directory)
    check_config(config, max_rank=max_rank, base=base)
    tensors = read_weights(directory)
    check_weights(tensors, config.ranks, base, fan_in_fan_out=config.fan_in_fan_out)
    return AdapterFacts(
        rank=max(config.ranks),
        target_modules=config.modules,
        tensors=len(tensors),
        weights_bytes=sum(tensor.size_bytes for tensor in tensors),
    )


def _check_files(directory: Path, text_max_bytes: int) -> None:
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name in (CONFIG_NAME, WEIGHTS_NAME, MANIFEST_NAME, SIGNATURE_NAME):
            continue
        if path.is_symlink() or not path.is_file() or path.suffix.lower() not in _ALLOWED_SUFFIXES:
            raise ArtifactRefused(
                f"{name[:200]} does not belong in an adapter: only {CONFIG_NAME}, {WEIGHTS_NAME} and plain "
                f"{' '.join(_ALLOWED_SUFFIXES)} files"
            )
        _check_text(path, name, LARGE_TEXT_MAX_BYTES if name in LARGE_TEXTS else text_max_bytes)


def _check_text(path: Path, name: str, max_bytes: int) -> None:
    """Raise ArtifactRefused if the file is over `max_bytes`, is not UTF-8 or holds a NUL, as archives, pickles and
    programs do."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    size_bytes = 0
    with directories.open_plain(path) as file:
        while block := file.read(directories.READ_BYTES):
            size_bytes += len(block)
            if size_bytes > max_bytes:
                raise ArtifactRefused(f"{name} is over {max_bytes} bytes: leave it out, or make it smaller")
            try:
                text = decoder.decode(block)
            except UnicodeDecodeError as error:
                raise ArtifactRefused(f"{name} is not what its name says: {error.reason} at {error.start}") from error
            if "\0" in text:
                raise ArtifactRefused(f"{name} is not what its name says: text holds no NUL")
