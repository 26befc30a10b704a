"""`python -m functions.telemetry.store`: the trace store of one machine, configured by SHOAL_TRACE_STORE_*."""

import logging
import sys

import uvicorn
from pydantic import ValidationError

from functions.telemetry.store.local_server import LocalStore, LocalStoreSettings, opened

_KEEP_ALIVE_S = 75


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = LocalStoreSettings()
        password = settings.password_file.read_text().strip()
        session, ask = opened(settings)
    except (ValidationError, OSError, ImportError, RuntimeError) as error:
        print(f"trace store: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    try:
        uvicorn.run(
            LocalStore(ask, settings.user, password),
            host=settings.host,
            port=settings.port,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
    finally:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
