"""Local resources that policies in force need at this gateway and that are missing. Blocks, because it checks files.

    tokenizer      of a pool whose routing policy uses prefixes that replicas report (`spec.prefix.source`)
    tool_secret    of a tenant's tool

The list is sent to the controller every ten seconds (`feeds.publish_needs`), which reports it on the policy. A
gateway with missing resources still serves, as each policy's page says.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from functions.decisions.catalogue import Catalogue
from functions.fleet.pool_heartbeat import MAX_NEEDS, WHY_MAX_CHARS, UnmetNeed
from functions.gateway.chat.tools.calls import secret_file
from functions.gateway.prefix.tokenizer_source import TokenizerSource, is_needed

_SUBJECT_MAX_CHARS = 256
_NO_TOKENIZERS = "neither SHOAL_GATEWAY_TOKENIZERS_DIR nor SHOAL_GATEWAY_TOKENIZERS_CACHE_DIR is set"


def unmet_needs(
    catalogue: Catalogue, tokenizers: TokenizerSource | None, secrets_dir: Path | None
) -> tuple[UnmetNeed, ...]:
    """Return the tokenizers and secrets that the snapshot needs and this gateway lacks: the first MAX_NEEDS, sorted."""
    found = [*_tokenizers(catalogue, tokenizers), *_secrets(catalogue, secrets_dir)]
    told = sorted((need.what, need.subject, need.why) for need in found if len(need.subject) <= _SUBJECT_MAX_CHARS)
    return tuple(UnmetNeed(what, subject, why[:WHY_MAX_CHARS]) for what, subject, why in told[:MAX_NEEDS])


def _tokenizers(catalogue: Catalogue, tokenizers: TokenizerSource | None) -> Iterator[UnmetNeed]:
    for pool in catalogue.pools:
        if is_needed(catalogue, pool):
            why = tokenizers.why_missing(pool) if tokenizers is not None else _NO_TOKENIZERS
            if why:
                yield UnmetNeed("tokenizer", pool, why)


def _secrets(catalogue: Catalogue, folder: Path | None) -> Iterator[UnmetNeed]:
    for tenant, entry in catalogue.tenants.items():
        for secret in sorted({tool.secret for tool in entry.tools if tool.secret}):
            why = "SHOAL_GATEWAY_TOOL_SECRETS_DIR is not set"
            if folder is not None:
                why = _unreadable(secret_file(folder, tenant, secret))
            if why:
                yield UnmetNeed("tool_secret", f"{tenant}/{secret}", why)


def _unreadable(file: Path) -> str:
    if not file.is_file():
        return f"there is no file {file}"
    return "" if os.access(file, os.R_OK) else f"{file} cannot be read"
