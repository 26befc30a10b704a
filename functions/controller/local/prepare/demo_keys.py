"""API keys for the demo tenants, minted per installation: none is in the repository.

The keys themselves lie in `secrets/demo-keys.json` (for `shoal env` and `shoal chat`); the Tenant documents get only
their keyed hashes.
"""

import secrets
from collections.abc import Iterable

import msgspec

from functions.api.keys import keyed_hash, mint, parse
from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import replace_file

KEY_ENVIRONMENT = "local"


class DemoKey(msgspec.Struct, frozen=True):
    key_id: str
    key: str

    def __repr__(self) -> str:  # a secret must not reach a log by way of a repr
        return f"DemoKey(key_id={self.key_id!r}, key=<hidden>)"


def read_demo_keys(layout: StateLayout) -> dict[str, DemoKey]:
    """By tenant; empty where none were minted."""
    try:
        return msgspec.json.decode(layout.demo_keys_file.read_bytes(), type=dict[str, DemoKey])
    except (OSError, msgspec.DecodeError):
        return {}


def ensure_demo_keys(layout: StateLayout, tenants: Iterable[str]) -> dict[str, DemoKey]:
    """A key for each tenant: the one it has, else a new one."""
    keys = {tenant: key for tenant, key in read_demo_keys(layout).items() if parse(key.key) is not None}
    missing = [tenant for tenant in tenants if tenant not in keys]
    for tenant in missing:
        key_id = f"demo-{tenant}"[:32].rstrip("-.").replace(".", "-").replace("_", "-")
        keys[tenant] = DemoKey(key_id, mint(KEY_ENVIRONMENT, key_id, secrets.token_bytes(32)))
    if missing:
        replace_file(layout.demo_keys_file, msgspec.json.format(msgspec.json.encode(keys), indent=1))
    return keys


def hashed(layout: StateLayout, key: DemoKey) -> str:
    """What a Tenant's `hmacSha256` holds for this key."""
    parsed = parse(key.key)
    if parsed is None:
        raise ValueError(f"{layout.demo_keys_file} holds a malformed key for {key.key_id}; delete the file")
    return keyed_hash(read_pepper(layout), parsed.secret)


def read_pepper(layout: StateLayout) -> bytes:
    """The bytes of the pepper file, without surrounding white space: the same that the gateway reads."""
    return layout.secret("pepper").read_bytes().strip()
