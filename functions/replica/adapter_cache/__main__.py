"""`python -m functions.replica.adapter_cache`: a region's adapter cache, configured by SHOAL_ADAPTER_CACHE_*."""

import logging
import sys

from pydantic import ValidationError

from functions.artifacts.s3 import CredentialsInvalid
from functions.replica.adapter_cache.runner import run
from functions.replica.listeners import StartFailed
from functions.replica.settings import AdapterCacheSettings


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(AdapterCacheSettings())
    except (StartFailed, CredentialsInvalid, ValidationError, OSError) as error:
        print(f"adapter cache: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
