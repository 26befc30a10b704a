"""`python -m functions.controller`: the controller process; settings from the environment, log to standard error."""

import asyncio
import logging
import sys

from functions.api import struct_types
from functions.controller.local.context import BinaryMissing
from functions.controller.local.files import LockTaken
from functions.controller.local.port_check import PortsTaken
from functions.controller.local.settings import ControllerSettings, LocalSettings
from functions.controller.local.slots import TooManyReplicas
from functions.controller.process import Controller, NothingToRun


async def run() -> None:
    settings = ControllerSettings()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    struct_types.prepare()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    await Controller(LocalSettings(), settings).run()


def main() -> int:
    try:
        asyncio.run(run())
    except (LockTaken, PortsTaken, BinaryMissing, TooManyReplicas, NothingToRun) as error:
        sys.stderr.write(f"controller: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
