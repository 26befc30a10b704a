"""`python -m studies.gateway ROUTER`: a gateway that routes requests by another router's algorithm (`routers.live`).

It is configured by SHOAL_GATEWAY_* like any gateway. For comparison, not for production: `loadtests.routing replay`
starts a fleet with one for each router.
"""

import argparse
import sys
from typing import get_args

from functions.gateway.__main__ import main as serve
from studies.routers.live import LiveRouterName, live_choice


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.gateway", description=__doc__)
    parser.add_argument("router", choices=get_args(LiveRouterName))
    return serve(live_choice(parser.parse_args().router))


if __name__ == "__main__":
    sys.exit(main())
