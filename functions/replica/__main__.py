"""`python -m functions.replica`: the agent process, configured by SHOAL_REPLICA_* (settings.py)."""

import logging
import sys

from pydantic import ValidationError

from functions.api import struct_types
from functions.artifacts.s3 import CredentialsInvalid
from functions.replica.listeners import AgentStartFailed
from functions.replica.server import run
from functions.replica.settings import ReplicaSettings


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    struct_types.prepare()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        run(ReplicaSettings())
    except (AgentStartFailed, CredentialsInvalid, ValidationError, OSError) as error:
        print(f"replica agent: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
