"""A pool as the local target needs it: what an InferenceService says, without Kubernetes. A value; stored as JSON too.

The last good pools are kept on disk: a bad file met at the controller's start must not end a running fleet.
"""

from pathlib import Path

import msgspec

from functions.controller.local.ledger import replace_file


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # label shoal.dev/pool: the pool's name, and the base model's id
    replicas: int
    model: str  # directory name below the models directory, from `pvc://shoal-models/<model>`
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()  # sorted


def read_last_good(path: Path) -> tuple[Pool, ...]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[Pool, ...])
    except (OSError, msgspec.DecodeError):
        return ()


def write_last_good(path: Path, pools: tuple[Pool, ...]) -> None:
    replace_file(path, msgspec.json.encode(pools))
