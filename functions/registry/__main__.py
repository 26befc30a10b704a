"""`python -m functions.registry [migrate]`: the registry process, configured by SHOAL_REGISTRY_* (settings.py).

`migrate` only upgrades the database schema and exits; the process also does this when it starts.
"""

import logging
import sys

from pydantic import ValidationError

from functions.api import struct_types
from functions.registry.server import RegistryStartFailed, migrate, run
from functions.registry.settings import RegistrySettings


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    struct_types.prepare()
    logging.getLogger("httpx").setLevel(logging.WARNING)  # requests to other regions, one a second, would fill the log
    try:
        settings = RegistrySettings()
        if sys.argv[1:] == ["migrate"]:
            migrate(settings)
        elif sys.argv[1:]:
            raise RegistryStartFailed(f"{sys.argv[1][:80]!r} is not a command; use `migrate`, or no command to serve")
        else:
            run(settings)
    except (RegistryStartFailed, ValidationError) as error:
        print(f"registry: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
