"""Hashes of sessions on the bus: eight bytes each, concatenated, in base64; bounded."""

import base64
import binascii
from typing import Annotated

import msgspec

from functions.decisions.routing.sessions import HASH_BYTES

MAX_HASHES = 4096
MAX_TTL_S = 86_400.0

SessionHashes = Annotated[str, msgspec.Meta(max_length=4 * (MAX_HASHES * HASH_BYTES // 3 + 1))]


class HashesInvalid(Exception):
    """The bytes are not a whole number of hashes, or there are too many."""


def join(hashes: list[bytes]) -> str:
    return base64.b64encode(b"".join(hashes)).decode()


def split(text: str) -> list[bytes]:
    """Decode base64 text to a list of hashes, empty for empty text; HashesInvalid if it is malformed, ends within a
    hash, or has too many."""
    try:
        joined = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise HashesInvalid(str(error)) from error
    if len(joined) % HASH_BYTES or len(joined) > MAX_HASHES * HASH_BYTES:
        raise HashesInvalid(f"{len(joined)} bytes are no whole number of hashes, or too many")
    return [joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES)]
