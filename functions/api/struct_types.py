"""Struct types made ready to decode before a process has threads.

msgspec looks at a type's annotations when it decodes it for the first time, and two threads that do so at once can stop
the whole process: one of them turns for ever with the interpreter's lock (seen with CPython 3.11, at
the starts of agents, which fetch two adapters at once). So each role's `main` calls `prepare` first.
"""

import contextlib
from collections.abc import Iterator

import msgspec


def prepare() -> int:
    """Every Struct of shoal's that is imported by now; how many there are. Milliseconds."""
    types = set(_below(msgspec.Struct))
    for each in types:
        with contextlib.suppress(TypeError):  # one that is only ever built or encoded
            msgspec.json.Decoder(each)
    return len(types)


def _below(parent: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in parent.__subclasses__():
        if each.__module__.startswith("functions."):
            yield each
        yield from _below(each)
