"""Tokenizer of a model: token ids as the engine computes them, and where in the text each token ends.

The model's own tokenizer is used. Special tokens (<|im_start|>) cut a text before anything else, so the text between
two of them is tokenized separately: in a growing conversation only the new turn is tokenized and the rest is cached.
Some tokenizers have special tokens that affect neighbouring text, or add something at the beginning of a text. Then
the whole text is tokenized every time. A probe detects this once, on loading.

Exactness is required: different token ids name blocks that no replica holds.
test_token_ids_match_the_whole_text checks it for thousands of conversations.

This runs on a thread beside the event loop, which must not wait for it. `Tokenizer.encode` holds the interpreter's
lock to its end (1.1 s for 1 MB), `encode_batch` does not. A list of all offsets would be one call too (100 ms for
250,000 tokens). Ends are therefore read one by one, so that other threads get the lock in between.

Measured on a busy core: 2 KB of new text (600 tokens) takes 4 ms, a cached piece of that size 5 us.
"""

import hashlib
import json
import re
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Encoding, Tokenizer

MAX_REMEMBERED_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 300  # overhead of an entry beside its numbers
_PROBE_WORDS = ("You are", " a\n", "\n\nhello ", " ", "", "naïve “x”  \n", "1234567", "\t\t", "don't ")


class Tokens:
    """Token ids, and for each the number of characters of the text up to its end."""

    __slots__ = ("ends", "ids")

    def __init__(self) -> None:
        self.ids = array("q")
        self.ends = array("q")

    def add(self, ids: "array[int]", ends: "array[int]", offset: int) -> None:
        """Append these tokens; `ends` are their ends in characters, counted from `offset`."""
        self.ids.extend(ids)
        self.ends.frombytes((np.frombuffer(ends, dtype=np.int64) + offset).tobytes())


class PromptTokenizer(Protocol):
    def tokens(self, text: str, *, add_special_tokens: bool) -> Tokens: ...


class ModelPromptTokenizer:
    """Tokenizer of one model directory. Owned by one thread."""

    def __init__(self, tokenizer: Tokenizer, added: list[dict[str, Any]]) -> None:
        self._tokenizer = tokenizer
        cutting = [token for token in added if _cuts_cleanly(token)]
        self._special = {str(token["content"]): int(token["id"]) for token in cutting}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._cut = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if self._special else None
        self._remembered: OrderedDict[bytes, tuple[array[int], array[int]]] = OrderedDict()
        self._remembered_bytes = 0
        self.in_pieces = self._cut is not None and self._pieces_are_exact()

    @classmethod
    def load(cls, directory: Path) -> "ModelPromptTokenizer":
        """Return a model directory's tokenizer. Raise OSError or ValueError if there is no readable tokenizer.json."""
        content = (directory / "tokenizer.json").read_text()
        try:
            tokenizer = Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing more precise
            raise ValueError(f"{directory / 'tokenizer.json'}: {error}") from error
        return cls(tokenizer, json.loads(content).get("added_tokens") or [])

    def tokens(self, text: str, *, add_special_tokens: bool) -> Tokens:
        if add_special_tokens or not self.in_pieces:
            return self._whole(text, add_special_tokens=add_special_tokens)
        return self._by_pieces(text)

    def _whole(self, text: str, *, add_special_tokens: bool) -> Tokens:
        tokens = Tokens()
        tokens.add(*self._encoded(text, add_special_tokens=add_special_tokens), 0)
        return tokens

    def _by_pieces(self, text: str) -> Tokens:
        tokens, at = Tokens(), 0
        for piece in self._cut.split(text) if self._cut is not None else [text]:
            special = self._special.get(piece)
            if special is not None:
                tokens.ids.append(special)
                tokens.ends.append(at + len(piece))
            elif piece:
                tokens.add(*self._piece(piece), at)
            at += len(piece)
        return tokens

    def _piece(self, piece: str) -> tuple["array[int]", "array[int]"]:
        # Cryptographic, so that no tenant can cause a collision
        key = hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        found = self._remembered.get(key)
        if found is not None:
            self._remembered.move_to_end(key)
            return found
        found = self._remembered[key] = self._encoded(piece, add_special_tokens=False)
        self._remembered_bytes += _size_bytes(found)
        while self._remembered_bytes > MAX_REMEMBERED_BYTES:
            self._remembered_bytes -= _size_bytes(self._remembered.popitem(last=False)[1])
        return found

    def _encoded(self, text: str, *, add_special_tokens: bool) -> tuple["array[int]", "array[int]"]:
        """Return a text's token ids and their ends in characters, without holding the interpreter's lock for long."""
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return array("q", encoding.ids), _ends(encoding)

    def _pieces_are_exact(self) -> bool:
        """Return True if tokenizing in pieces gives the same ids as in whole, for probe texts around special tokens."""
        for special in self._special:
            for before in _PROBE_WORDS:
                text = "".join(f"{before}{special}{after}" for after in _PROBE_WORDS)
                cut, whole = self._by_pieces(text), self._whole(text, add_special_tokens=False)
                if cut.ids != whole.ids:
                    return False
        return True


def _ends(encoding: Encoding) -> "array[int]":
    """Return the tokens' ends in characters, ascending. A token added around the text ends where the previous does."""
    ends = array("q")
    end, chars_of = 0, encoding.token_to_chars
    for index in range(len(encoding)):
        chars = chars_of(index)
        if chars is not None:
            end = max(end, chars[1])
        ends.append(end)
    return ends


def _cuts_cleanly(token: dict[str, Any]) -> bool:
    return bool(token.get("content")) and not any(
        token.get(name) for name in ("normalized", "lstrip", "rstrip", "single_word")
    )


def _size_bytes(found: tuple["array[int]", "array[int]"]) -> int:
    return 16 * len(found[0]) + _ENTRY_BYTES
