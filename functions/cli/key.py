"""`shoal key`: a tenant's API keys, made and withdrawn in the registry.

A key is shown once, on standard output and nowhere else: the registry keeps its keyed hash only. Keys that a Tenant's
YAML lists are git's, and withdrawn there.
"""

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.markup import escape

from functions.api.ids import is_name
from functions.api.kinds.quota_policy import QuotaLimits
from functions.cli.context import current_context
from functions.cli.refused import Refused
from functions.cli.registry_client import Registry
from functions.cli.terminal import make_error_console

_LIMITS = {field.alias or name: name for name, field in QuotaLimits.model_fields.items()}
_WHOLE = re.compile("[1-9][0-9]{0,11}")


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
    about = f"the key {made['id']} of {tenant}, for {', '.join(scopes)}: keep it now, it is shown this once"
    make_error_console().print(f"[dim]{escape(about)}\nwithdraw it: shoal key revoke {tenant} {made['id']}[/]")


def revoke(tenant: str, key_id: str, *, as_json: bool) -> None:
    _check(tenant)
    if not key_id or "/" in key_id:
        raise Refused(f"{key_id!r} is no key id: the part of the key between its second and third underscore")
    with Registry(current_context(clones=True)) as registry:
        registry.send("DELETE", f"/v1/tenants/{tenant}/keys/{key_id}")
    if as_json:
        typer.echo(json.dumps({"tenant": tenant, "id": key_id, "revoked": True}, indent=2))
    else:
        typer.echo(f"{key_id} of {tenant} is revoked: gateways refuse it within seconds")


def limit_of(text: str) -> tuple[str, int]:
    """`requestsPerMinute=60`, as policies write it: its name as the registry has it, and its value."""
    name, _, value = text.partition("=")
    if name not in _LIMITS:
        raise Refused(f"{text[:80]!r} is no limit; allowed: {', '.join(_LIMITS)}, each with =NUMBER")
    if not _WHOLE.fullmatch(value):
        raise Refused(f"{text[:80]!r}: {name} is a whole number from 1")
    return _LIMITS[name], int(value)


def _check(tenant: str) -> None:
    if not is_name(tenant):
        raise Refused(f"{tenant[:80]!r} is no tenant: a-z 0-9 . _ -, up to 63 characters")
