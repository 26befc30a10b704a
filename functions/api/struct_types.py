"""Preparation of struct types for decoding, before a process has threads.

msgspec inspects a type's annotations when it first decodes it. Two threads that do so concurrently can stop the
whole process: one of them loops forever while it holds the interpreter's lock (seen with CPython 3.11 when agents
start, which fetch two adapters concurrently). Each role's `main` therefore calls `prepare` first.
"""

import contextlib
from collections.abc import Iterator

import msgspec


def prepare() -> int:
    """Prepare every Struct of this project that is imported by now for decoding, and return their number. Takes
    milliseconds."""
    types = set(_below(msgspec.Struct))
    for each in types:
        with contextlib.suppress(TypeError):  # a type that is only built or encoded, never decoded
            msgspec.json.Decoder(each)
    return len(types)


def _below(parent: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in parent.__subclasses__():
        if each.__module__.startswith("functions."):
            yield each
        yield from _below(each)
