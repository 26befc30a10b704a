"""Entry point `python -m functions.telemetry.store`: trace store of one machine, configured by SHOAL_TRACE_STORE_*."""

import logging
import sys

from pydantic import ValidationError

from functions.http.binding import bind_socket
from functions.http.connections import Connections
from functions.http.guard import Bounds, Guard
from functions.http.listening import GuardedServer, server_config
from functions.telemetry.store.local_server import LocalStore, LocalStoreSettings, open_store

_BOUNDS = Bounds()  # bodies are limited where they are read
_CONNECTIONS = 256  # gateways, the registry and people of one machine


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = LocalStoreSettings()
        password = settings.password_file.read_text().strip()
        listener = bind_socket(settings.host, settings.port)
        session, ask = open_store(settings)
    except (ValidationError, OSError, ImportError, RuntimeError) as error:
        print(f"trace store: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    try:
        guard = Guard(_BOUNDS, Connections(_CONNECTIONS))
        GuardedServer(server_config(LocalStore(ask, settings.user, password), guard), guard).run([listener])
    finally:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
