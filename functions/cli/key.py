"""`shoal key`: create, revoke and list a tenant's API keys in the registry, or mint one for a Tenant's YAML.

A key is printed once, on standard output only. Registry and YAML store its keyed hash. Keys in a Tenant's YAML are
revoked in git.
"""

import json
import re
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Table

from functions.api import keys
from functions.api.ids import is_name
from functions.api.kinds.quota_policy import QuotaLimits
from functions.api.kinds.tenant import ApiKey
from functions.cli.context import current_context
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.cli.terminal import make_console, make_error_console

_LIMITS = {field.alias or name: name for name, field in QuotaLimits.model_fields.items()}
_WRITTEN = {name: alias for alias, name in _LIMITS.items()}  # names as policies write them
_WHOLE = re.compile("[1-9][0-9]{0,11}")
_PEPPER_MIN_BYTES, _PEPPER_MAX_BYTES = 16, 4096


def create(
    tenant: str,
    *,
    key_id: str | None,
    scopes: Sequence[str],
    max_class: str,
    expires: str | None,
    limits: Sequence[str],
    as_json: bool,
) -> None:
    _check(tenant)
    wanted = {
        "id": key_id,
        "scopes": list(scopes),
        "max_class": max_class,
        "expires": expires,
        "limits": dict(map(limit_of, limits)) or None,
    }
    body = {name: value for name, value in wanted.items() if value is not None}
    with Registry(current_context(clones=True)) as registry:
        made: dict[str, Any] = registry.send("POST", f"/v1/tenants/{tenant}/keys", body)
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    sys.stdout.write(f"{made['key']}\n")
    about = f"the key {made['id']} of {tenant}, for {', '.join(scopes)}: store it now, it is not shown again"
    about += "; gateways accept it within seconds"
    make_error_console().print(f"[dim]{escape(about)}\nrevoke it: shoal key revoke {tenant} {made['id']}[/]")


def revoke(tenant: str, key_id: str, *, as_json: bool) -> None:
    _check(tenant)
    if not key_id or "/" in key_id:
        raise CommandRefused(
            f"{key_id!r} is not a key id: use the part of the key between its second and third underscore"
        )
    with Registry(current_context(clones=True)) as registry:
        registry.send("DELETE", f"/v1/tenants/{tenant}/keys/{key_id}")
    if as_json:
        typer.echo(json.dumps({"tenant": tenant, "id": key_id, "revoked": True}, indent=2))
    else:
        typer.echo(f"{key_id} of {tenant} is revoked: gateways refuse it within seconds")


def ls(tenant: str, *, as_json: bool) -> None:
    """List the keys that the registry created, including revoked ones. Keys in a Tenant's YAML are not listed."""
    _check(tenant)
    with Registry(current_context(clones=True)) as registry:
        found = list(registry.pages(f"/v1/tenants/{tenant}/keys"))
    if as_json:
        typer.echo(json.dumps({"tenant": tenant, "keys": found}, indent=2))
        return
    if not found:
        make_console().print(
            f"the registry has created no key for {escape(tenant)}; keys in its YAML are managed in git"
        )
        return
    table = Table("key", "may", "best class", "expires", "limits", "", box=None, pad_edge=False)
    for key in found:
        expires_s = key["expires_unix_s"]
        table.add_row(
            escape(key["id"]),
            ", ".join(key["scopes"]),
            key["max_class"],
            datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%d %H:%M") if expires_s is not None else "never",
            " ".join(f"{_WRITTEN.get(name, name)}={value}" for name, value in (key["limits"] or {}).items()),
            "[red]revoked[/]" if key["revoked"] else "",
        )
    make_console().print(table)


def mint(
    key_id: str,
    *,
    pepper_file: str,
    environment: str,
    scopes: Sequence[str],
    max_class: str,
    expires: str | None,
    as_json: bool,
) -> None:
    """Create a key without a registry, and print it and its entry for a Tenant's YAML. A `pepper_file` of - is standard
    input."""
    pepper = _pepper(pepper_file)
    try:
        key = keys.mint(environment, key_id, secrets.token_bytes(32))
    except ValueError as error:
        raise CommandRefused(str(error)) from None
    parsed = keys.parse(key)
    assert parsed is not None, "what was minted is a key"
    entry = {
        "id": key_id,
        "hmacSha256": keys.keyed_hash(pepper, parsed.secret),
        "scopes": list(scopes),
        "maxClass": max_class,
        **({"expires": expires} if expires is not None else {}),
    }
    try:
        ApiKey.model_validate({**entry, "scopes": tuple(scopes)})
    except ValidationError as error:
        raise CommandRefused("; ".join(str(each["msg"]) for each in error.errors())) from None
    if as_json:
        typer.echo(json.dumps({"key": key, "entry": entry}, indent=2))
        return
    sys.stdout.write(f"{key}\n")
    shown = "\n    ".join(
        f"{name}: [{', '.join(value)}]" if isinstance(value, list) else f"{name}: {value}"
        for name, value in entry.items()
    )
    make_error_console().print(
        f"[dim]store it now, it is not shown again; entry for the Tenant's YAML:[/]\nkeys:\n  - {escape(shown)}",
        soft_wrap=True,
    )


def _pepper(file: str) -> bytes:
    """Read the pepper from a file, or - for standard input, like gateways and registry do: without surrounding white
    space. Fail if its length is not allowed."""
    try:
        if file == "-":
            pepper = sys.stdin.buffer.read(_PEPPER_MAX_BYTES + 2).strip()
        else:
            with Path(file).open("rb") as stream:
                pepper = stream.read(_PEPPER_MAX_BYTES + 2).strip()
    except OSError as error:
        raise CommandRefused(f"the pepper cannot be read: {error}") from None
    if not _PEPPER_MIN_BYTES <= len(pepper) <= _PEPPER_MAX_BYTES:
        raise CommandRefused(
            f"the pepper has {len(pepper)} bytes: {_PEPPER_MIN_BYTES} to {_PEPPER_MAX_BYTES} are expected, as the file "
            "(or the Secret shoal-pepper) of this installation holds"
        )
    return pepper


def limit_of(text: str) -> tuple[str, int]:
    """Parse `requestsPerMinute=60`, a limit as policies write it, to the registry's name and the value."""
    name, _, value = text.partition("=")
    if name not in _LIMITS:
        raise CommandRefused(f"{text[:80]!r} is not a limit; allowed: {', '.join(_LIMITS)}, each with =NUMBER")
    if not _WHOLE.fullmatch(value):
        raise CommandRefused(f"{text[:80]!r}: {name} must be a whole number, at least 1")
    return _LIMITS[name], int(value)


def _check(tenant: str) -> None:
    if not is_name(tenant):
        raise CommandRefused(f"{tenant[:80]!r} is not a tenant name: use a-z 0-9 . _ -, up to 63 characters")
