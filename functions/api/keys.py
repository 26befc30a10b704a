"""API keys: `shoal_<env>_<key id>_<43 characters of secret><6 of checksum>`.

The prefix lets secret scanners find a leaked key, and the checksum rejects typing errors without a lookup. Only
HMAC-SHA256(pepper, secret) is stored. 43 base62 characters are 256 bits, so no slow hash is needed.
"""

import hashlib
import hmac
import re
import zlib
from dataclasses import dataclass

from functions.api.ids import KeyId

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARS = 43
CHECKSUM_CHARS = 6
KEY_MAX_CHARS = 128
KEY_ID_PATTERN = r"[0-9A-Za-z][0-9A-Za-z-]{0,31}"
_ENV_PATTERN = r"[a-z0-9]{1,16}"
_KEY = re.compile(
    rf"(?P<signed>shoal_{_ENV_PATTERN}_(?P<id>{KEY_ID_PATTERN})_(?P<secret>[0-9A-Za-z]{{{SECRET_CHARS}}}))"
    rf"(?P<checksum>[0-9A-Za-z]{{{CHECKSUM_CHARS}}})"
)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    key_id: KeyId
    secret: str

    def __repr__(self) -> str:  # a repr must not write a secret to a log
        return f"ParsedKey(key_id={self.key_id!r}, secret=<hidden>)"


def mint(env: str, key_id: str, entropy: bytes) -> str:
    """Return a whole key from at least 32 random bytes, of which the first 32 count. Raises ValueError for fewer, or
    for an invalid environment or key id, and says what they may be."""
    if len(entropy) < 32:
        raise ValueError("a key needs 32 random bytes")
    if re.fullmatch(_ENV_PATTERN, env) is None:
        raise ValueError(f"a key cannot carry the environment {env!r}: 1 to 16 characters of a-z and 0-9")
    if re.fullmatch(KEY_ID_PATTERN, key_id) is None:
        allowed = "1 to 32 letters, digits and hyphens, the first no hyphen"
        raise ValueError(f"a key cannot carry the id {key_id!r}: {allowed}")
    signed = f"shoal_{env}_{key_id}_{_base62(int.from_bytes(entropy[:32], 'big'), SECRET_CHARS)}"
    return signed + _checksum(signed)


def parse(text: str) -> ParsedKey | None:
    """Parse a key into its id and secret; None for a wrong shape or checksum."""
    if len(text) > KEY_MAX_CHARS:
        return None
    match = _KEY.fullmatch(text)
    if match is None or match["checksum"] != _checksum(match["signed"]):
        return None
    return ParsedKey(key_id=KeyId(match["id"]), secret=match["secret"])


def keyed_hash(pepper: bytes, secret: str) -> str:
    """Return HMAC-SHA256 of the secret in hex, as in a Tenant's `hmacSha256`."""
    return hmac.digest(pepper, secret.encode(), hashlib.sha256).hex()


def _checksum(signed: str) -> str:
    return _base62(zlib.crc32(signed.encode()), CHECKSUM_CHARS)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
