"""`python -m functions.registry`: the registry process, configured by SHOAL_REGISTRY_* (settings.py)."""

import logging
import sys

from pydantic import ValidationError

from functions.registry.server import StartFailed, run
from functions.registry.settings import RegistrySettings


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(RegistrySettings())
    except (StartFailed, ValidationError) as error:
        print(f"registry: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
