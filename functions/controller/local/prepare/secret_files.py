"""The installation's secrets, made once: each file is written whole, readable by its owner only, and then kept.

Losing `pepper` invalidates every API key; the others can be replaced by deleting the file while the fleet is down.
"""

import json
import secrets
from pathlib import Path

from functions.controller.local.layout import StateLayout
from functions.controller.local.ledger import replace_file
from functions.controller.local.plan_servers import BUS_CONFIG, S3_CONFIG

TOKEN_BYTES = 32


def ensure_secrets(layout: StateLayout) -> None:
    for name in ("pepper", "internal-token", "bus-password"):
        _ensure(layout.secret(name), secrets.token_hex(TOKEN_BYTES))
    credentials = {"access_key_id": secrets.token_hex(10), "secret_access_key": secrets.token_hex(20)}
    _ensure(layout.secret("s3.json"), json.dumps(credentials))
    # The servers' own forms of what is above: written anew, so that they never disagree with it.
    replace_file(layout.secret(S3_CONFIG), _seaweed_config(layout).encode())
    replace_file(layout.secret(BUS_CONFIG), _valkey_config(layout).encode())


def _ensure(path: Path, content: str) -> None:
    if not path.exists() or path.stat().st_size == 0:
        replace_file(path, content.encode())
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
    """Heartbeats live for seconds: nothing is persisted, and memory is bounded whatever is sent."""
    password = layout.secret("bus-password").read_text().strip()
    lines = [
        f"requirepass {password}",
        "protected-mode yes",
        "daemonize no",
        "set-proc-title no",  # it would overwrite the environment, and with it the fleet's mark
        'save ""',
        "appendonly no",
        f'dir "{layout.data_dir("bus")}"',
        "maxmemory 256mb",
        "maxmemory-policy noeviction",  # to forget what was spent of a quota would be to give it twice
        "loglevel notice",
    ]
    return "\n".join(lines) + "\n"
