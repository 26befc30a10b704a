"""Create the installation's secrets and the API keys of its demo tenants once, readable by their owner only.

Losing `pepper` invalidates every API key. The other secrets can be replaced by deleting the file while the fleet is
down. Demo keys are minted per installation; none is in the repository. They are in `secrets/demo-keys.json` (for
`shoal env` and `shoal chat`), and Tenant documents contain only their keyed hashes.
"""

import json
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec

from functions.api.keys import keyed_hash, mint, parse
from functions.controller.local.files import replace_file
from functions.controller.local.layout import StateLayout
from functions.controller.local.plan_servers import BUS_CONFIG, S3_CONFIG
from functions.fleet.bus_users import USERS, login, server_users
from functions.fleet.role_credentials import ROLES, document, tokens_in

TOKEN_BYTES = 32


def ensure_secrets(layout: StateLayout) -> None:
    for name in ("pepper", "regions-token", "internal-token", "bus-password", "traces-password"):
        _ensure(layout.secret(name), secrets.token_hex(TOKEN_BYTES))
    credentials = {"access_key_id": secrets.token_hex(10), "secret_access_key": secrets.token_hex(20)}
    _ensure(layout.secret("s3.json"), json.dumps(credentials))
    # Files derived from these secrets are rewritten each time, so that they never disagree.
    tokens = tokens_in(layout.secret("internal-token").read_text())
    for role in ROLES:
        replace_file(layout.credentials(role), document(role, tokens))
        layout.credentials(role).chmod(0o600)
    password = layout.secret("bus-password").read_text().strip()
    for user in USERS:
        replace_file(layout.bus_login(user), login(user, password).encode())
        layout.bus_login(user).chmod(0o600)
    # Configuration of SeaweedFS and Valkey with these secrets.
    replace_file(layout.secret(S3_CONFIG), _seaweed_config(layout).encode())
    replace_file(layout.secret(BUS_CONFIG), _valkey_config(layout).encode())


def _ensure(path: Path, content: str) -> None:
    if not path.exists() or path.stat().st_size == 0:
        replace_file(path, content.encode(), durable=True)
    path.chmod(0o600)


def _seaweed_config(layout: StateLayout) -> str:
    credentials = json.loads(layout.secret("s3.json").read_text())
    identity = {
        "name": "shoal",
        "credentials": [
            {"accessKey": credentials["access_key_id"], "secretKey": credentials["secret_access_key"]},
        ],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return json.dumps({"identities": [identity]}, indent=1)


def _valkey_config(layout: StateLayout) -> str:
    """Return Valkey's configuration. Heartbeats live for seconds, so nothing is persisted; memory is always bounded."""
    password = layout.secret("bus-password").read_text().strip()
    lines = [
        f"requirepass {password}",
        *server_users(password),
        "protected-mode yes",
        "daemonize no",
        "set-proc-title no",  # a title would overwrite the environment and so the fleet's mark
        'save ""',
        "appendonly no",
        f'dir "{layout.data_dir("bus")}"',
        "maxmemory 256mb",
        "maxmemory-policy noeviction",  # an evicted quota counter could be spent twice
        "loglevel notice",
    ]
    return "\n".join(lines) + "\n"


KEY_ENVIRONMENT = "local"


class DemoKey(msgspec.Struct, frozen=True):
    key_id: str
    key: str

    def __repr__(self) -> str:  # a secret must not reach a log by way of a repr
        return f"DemoKey(key_id={self.key_id!r}, key=<hidden>)"


def read_demo_keys(layout: StateLayout) -> dict[str, DemoKey]:
    """Return the demo keys by tenant; none if they were not minted or cannot be read."""
    try:
        return msgspec.json.decode(layout.demo_keys_file.read_bytes(), type=dict[str, DemoKey])
    except (OSError, msgspec.DecodeError):
        return {}


def ensure_demo_keys(layout: StateLayout, tenants: Iterable[str]) -> dict[str, DemoKey]:
    """Return all stored demo keys by tenant, after minting and storing one for each of `tenants` that has none."""
    keys = {tenant: key for tenant, key in read_demo_keys(layout).items() if parse(key.key) is not None}
    missing = [tenant for tenant in tenants if tenant not in keys]
    for tenant in missing:
        key_id = f"demo-{tenant}"[:32].rstrip("-.").replace(".", "-").replace("_", "-")
        keys[tenant] = DemoKey(key_id, mint(KEY_ENVIRONMENT, key_id, secrets.token_bytes(32)))
    if missing:
        replace_file(layout.demo_keys_file, msgspec.json.format(msgspec.json.encode(keys), indent=1), durable=True)
    return keys


def key_hash(layout: StateLayout, key: DemoKey) -> str:
    """Return the key's hash for a Tenant's `hmacSha256`. Raise ValueError if the key is malformed."""
    parsed = parse(key.key)
    if parsed is None:
        raise ValueError(f"{layout.demo_keys_file} holds a malformed key for {key.key_id}; delete the file")
    return keyed_hash(read_pepper(layout), parsed.secret)


def read_pepper(layout: StateLayout) -> bytes:
    """Return the pepper file's bytes without surrounding white space, exactly as the gateway reads them."""
    return layout.secret("pepper").read_bytes().strip()
