"""What policies in force need at this gateway, and what of it is not there. Blocks: it looks at files.

    tokenizer      of a pool whose routing policy knows prefixes by what replicas tell (`prefix.source`)
    tool_secret    of a tenant's tool

Told to the controller each ten seconds (`feeds.publish_needs`), which says so on the policy. A gateway that lacks
something serves all the same, as each policy's page says.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from functions.decisions.catalogue import Catalogue
from functions.fleet.pool_heartbeat import MAX_NEEDS, WHY_MAX_CHARS, UnmetNeed

_SUBJECT_MAX_CHARS = 256
_STAND_IN = b"shoal_tokenizer"
_CONFIG_MAX_BYTES = 64 * 1024


def unmet_needs(catalogue: Catalogue, tokenizers_dir: Path | None, secrets_dir: Path | None) -> tuple[UnmetNeed, ...]:
    """The first by name, where there are too many to tell."""
    found = [*_tokenizers(catalogue, tokenizers_dir), *_secrets(catalogue, secrets_dir)]
    told = sorted((need.what, need.subject, need.why) for need in found if len(need.subject) <= _SUBJECT_MAX_CHARS)
    return tuple(UnmetNeed(what, subject, why[:WHY_MAX_CHARS]) for what, subject, why in told[:MAX_NEEDS])


def _tokenizers(catalogue: Catalogue, folder: Path | None) -> Iterator[UnmetNeed]:
    for name, pool in catalogue.pools.items():
        if pool.task == "generate" and catalogue.routing_for(name).prefix_source != "sent":
            why = "SHOAL_GATEWAY_TOKENIZERS_DIR is not set" if folder is None else _no_tokenizer(folder / name)
            if why:
                yield UnmetNeed("tokenizer", name, why)


def _no_tokenizer(folder: Path) -> str:
    """A model's own, or the stand-in that a simulated engine's config names."""
    if (folder / "tokenizer.json").is_file():
        return ""
    config = folder / "config.json"
    is_stand_in = config.is_file() and _STAND_IN in config.read_bytes()[:_CONFIG_MAX_BYTES]
    return "" if is_stand_in else f"there is no tokenizer.json in {folder}"


def _secrets(catalogue: Catalogue, folder: Path | None) -> Iterator[UnmetNeed]:
    for tenant, entry in catalogue.tenants.items():
        for secret in sorted({tool.secret for tool in entry.tools if tool.secret}):
            why = (
                "SHOAL_GATEWAY_TOOL_SECRETS_DIR is not set" if folder is None else _unreadable(folder / tenant / secret)
            )
            if why:
                yield UnmetNeed("tool_secret", f"{tenant}/{secret}", why)


def _unreadable(file: Path) -> str:
    if not file.is_file():
        return f"there is no file {file}"
    return "" if os.access(file, os.R_OK) else f"{file} cannot be read"
