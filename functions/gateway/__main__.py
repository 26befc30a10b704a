"""`python -m functions.gateway`: the gateway process, configured by SHOAL_GATEWAY_* (settings.py)."""

import logging
import sys

from pydantic import ValidationError

from functions.api import struct_types
from functions.gateway.listeners import StartFailed
from functions.gateway.routing.router import OtherChoice
from functions.gateway.server import run
from functions.gateway.settings import GatewaySettings


def main(other: OtherChoice | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    struct_types.prepare()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        run(GatewaySettings(), other)
    except (StartFailed, ValidationError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201 - the last output of the process
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
