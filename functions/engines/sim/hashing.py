"""Names of KV blocks: a block is what it holds, after everything that came before it.

The hash of a full block chains its parent's hash, its tokens, and what makes the same tokens mean another KV: the
adapter (name and path, on every block) and the tenant's cache salt (on the first block, which isolates the whole
chain). The rule is vLLM's (v1/core/kv_cache_utils.py); the digest is not, because nobody outside compares it.
"""

from array import array
from dataclasses import dataclass
from hashlib import blake2b

ROOT = b"root"
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Who may share KV with whom: equal scopes and equal tokens, nothing else."""

    adapter_name: str | None = None
    adapter_path: str | None = None
    salt: str | None = None

    def extra(self, *, first: bool) -> bytes:
        parts = (self.adapter_name, self.adapter_path, self.salt if first else None)
        return repr(parts).encode()


def block_hash(parent: bytes | None, tokens: "array[int]", scope: CacheScope) -> bytes:
    digest = blake2b(parent or ROOT, digest_size=_DIGEST_BYTES)
    digest.update(tokens.tobytes())
    digest.update(scope.extra(first=parent is None))
    return digest.digest()


def chain(tokens: "array[int]", scope: CacheScope, *, block_size_tokens: int, blocks: int) -> list[bytes]:
    """The hashes of the first `blocks` full blocks of `tokens`."""
    hashes: list[bytes] = []
    parent: bytes | None = None
    for start in range(0, blocks * block_size_tokens, block_size_tokens):
        parent = block_hash(parent, tokens[start : start + block_size_tokens], scope)
        hashes.append(parent)
    return hashes
