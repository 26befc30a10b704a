"""Convert text to token ids and back, with the model's own tokenizer if there is one, else with a small built-in one.

The built-in tokenizer needs no files and keeps no state. A token is up to six UTF-8 bytes of one word with its
leading space; its id is those bytes with a 1 in front. Ids are therefore stable, reversible, below 2**53 (exact in
JSON readers) and about as many as a real tokenizer's (1.3 per English word).
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer as HfTokenizer
from tokenizers.decoders import DecodeStream

_PIECE_BYTES = 6
_WORD = re.compile(r"<\|[a-z_]+\|>|\s?\w+|\s?[^\w\s]+|\s+")
_SPECIAL = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
_SPECIAL_OF = {number: text for text, number in _SPECIAL.items()}


class Tokenizer(Protocol):
    @property
    def eos_id(self) -> int: ...
    @property
    def vocab_tokens(self) -> int: ...
    @property
    def max_chars_per_token(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds when they are read one after another."""
        ...

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the tokenizer's own spelling of each token."""
        ...


class BuiltinTokenizer:
    eos_id = _SPECIAL["<|im_end|>"]
    vocab_tokens = 1 << 53
    max_chars_per_token = 64

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [number for word in _WORD.findall(text) for number in _word_ids(word)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(_text_of(number, skip_special=skip_special_tokens) for number in ids)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [_text_of(number, skip_special=True) for number in ids]

    def names(self, ids: Sequence[int]) -> list[str]:
        return [_text_of(number, skip_special=False) for number in ids]


class ModelTokenizer:
    """The tokenizer.json of a model directory."""

    def __init__(self, tokenizer: HfTokenizer, *, eos_token: str) -> None:
        self._tokenizer = tokenizer
        self.eos_id: int = tokenizer.token_to_id(eos_token) or 0
        self.vocab_tokens: int = tokenizer.get_vocab_size()
        self.max_chars_per_token = max(map(len, tokenizer.get_vocab()), default=64)

    @classmethod
    def load(cls, directory: Path, *, eos_token: str) -> "ModelTokenizer":
        return cls(HfTokenizer.from_file(str(directory / "tokenizer.json")), eos_token=eos_token)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        known = [number for number in ids if number < self.vocab_tokens]
        return str(self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        stream = DecodeStream(skip_special_tokens=True)
        return [stream.step(self._tokenizer, number) or "" for number in ids]

    def names(self, ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.id_to_token(number) or "" for number in ids]


def _word_ids(word: str) -> list[int]:
    if word in _SPECIAL:
        return [_SPECIAL[word]]
    pieces: list[bytes] = [b""]
    for char in word:
        encoded = char.encode("utf-8", "replace")
        if len(pieces[-1]) + len(encoded) > _PIECE_BYTES:
            pieces.append(b"")
        pieces[-1] += encoded
    return list(map(partial(int.from_bytes, byteorder="big"), (b"\x01" + piece for piece in pieces)))


def _text_of(number: int, *, skip_special: bool) -> str:
    if number in _SPECIAL_OF:
        return "" if skip_special else _SPECIAL_OF[number]
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return raw[1:].decode("utf-8", "replace") if raw[:1] == b"\x01" else ""
