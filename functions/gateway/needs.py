"""What policies in force need at this gateway, and what of it is not there. Blocks: it looks at files.

    tokenizer      of a pool whose routing policy knows prefixes by what replicas tell (`prefix.source`)
    tool_secret    of a tenant's tool

Told to the controller each ten seconds (`feeds.publish_needs`), which says so on the policy. A gateway that lacks
something serves all the same, as each policy's page says.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from functions.api.ids import PoolName
from functions.decisions.catalogue import Catalogue
from functions.fleet.pool_heartbeat import MAX_NEEDS, WHY_MAX_CHARS, UnmetNeed
from functions.gateway.chat.tools.calls import secret_file

_SUBJECT_MAX_CHARS = 256
_STAND_IN = b"shoal_tokenizer"
_CONFIG_MAX_BYTES = 64 * 1024


def unmet_needs(
    catalogue: Catalogue,
    tokenizers_dir: Path | None,
    secrets_dir: Path | None,
    not_fetched: Callable[[PoolName], str] | None = None,
) -> tuple[UnmetNeed, ...]:
    """The first by name, where there are too many to tell. `not_fetched` says why the store gave no tokenizer, empty
    where it did or is being asked; None: there is only the folder."""
    found = [*_tokenizers(catalogue, tokenizers_dir, not_fetched), *_secrets(catalogue, secrets_dir)]
    told = sorted((need.what, need.subject, need.why) for need in found if len(need.subject) <= _SUBJECT_MAX_CHARS)
    return tuple(UnmetNeed(what, subject, why[:WHY_MAX_CHARS]) for what, subject, why in told[:MAX_NEEDS])


def _tokenizers(
    catalogue: Catalogue, folder: Path | None, not_fetched: Callable[[PoolName], str] | None
) -> Iterator[UnmetNeed]:
    for name, pool in catalogue.pools.items():
        if pool.task == "generate" and catalogue.routing_for(name).prefix_source != "sent":
            if folder is not None:
                why = _no_tokenizer(folder / name)
            else:
                why = not_fetched(name) if not_fetched is not None else "SHOAL_GATEWAY_TOKENIZERS_DIR is not set"
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
                "SHOAL_GATEWAY_TOOL_SECRETS_DIR is not set"
                if folder is None
                else _unreadable(secret_file(folder, tenant, secret))
            )
            if why:
                yield UnmetNeed("tool_secret", f"{tenant}/{secret}", why)


def _unreadable(file: Path) -> str:
    if not file.is_file():
        return f"there is no file {file}"
    return "" if os.access(file, os.R_OK) else f"{file} cannot be read"
