"""Run the controller on Kubernetes (`python -m functions.controller.kubernetes`); SHOAL_CONTROLLER_* configure it."""

import asyncio
import logging
import sys

from pydantic import ValidationError

from functions.api import struct_types
from functions.artifacts.s3 import CredentialsInvalid
from functions.controller.kubernetes.run.client import load_configuration
from functions.controller.kubernetes.run.process import KubernetesController
from functions.controller.kubernetes.run.settings import ControllerStartFailed, KubernetesSettings


def main() -> int:
    try:
        settings = KubernetesSettings()
        logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        struct_types.prepare()
        logging.getLogger("httpx").setLevel(logging.WARNING)
        asyncio.run(_run(settings))
    except (ControllerStartFailed, CredentialsInvalid, ValidationError, OSError, ValueError) as error:
        print(f"controller: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


async def _run(settings: KubernetesSettings) -> None:
    await KubernetesController(settings, load_configuration(settings)).run()


if __name__ == "__main__":
    sys.exit(main())
