"""`python -m functions.replica.node_fetch WHAT [FOLDER]…`: configured by SHOAL_NODE_FETCH_* (settings.py).

Exits with 0 once all artifacts are in the cache (and seeded), 1 with a reason on failure, 2 on wrong arguments.
Progress goes to stderr, a line of JSON for each digest to stdout.
"""

import argparse
import logging
import sys

from pydantic import ValidationError

from functions.api import struct_types
from functions.artifacts.errors import ArtifactError
from functions.artifacts.s3 import CredentialsInvalid
from functions.replica.listeners import AgentStartFailed
from functions.replica.node_fetch.runner import GaveUp, run
from functions.replica.node_fetch.wanted import parse_wanted
from functions.replica.settings import NodeFetchSettings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m functions.replica.node_fetch", description=__doc__)
    parser.add_argument(
        "wanted",
        nargs="+",
        metavar="WHAT [FOLDER]",
        help="sha256:<hex> or shoal://name@version to fetch; linked at FOLDER, an absolute path",
    )
    parser.add_argument(
        "--seed-s", type=float, default=None, help="seconds to serve chunks afterwards (SHOAL_NODE_FETCH_SEED_S)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    struct_types.prepare()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        settings = NodeFetchSettings()
        if arguments.seed_s is not None:
            settings = settings.model_copy(update={"seed_s": arguments.seed_s})
        run(settings, parse_wanted(arguments.wanted))
    except (ArtifactError, GaveUp, AgentStartFailed, CredentialsInvalid, ValidationError, OSError) as error:
        print(f"node fetch: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
