"""Access to a trace store: the local fleet's, a cluster's through its API server, or any store by its address."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.cli.context import CliContext
from functions.cli.refused import CommandRefused
from functions.controller.local.plan_servers import TRACES_PASSWORD, TRACES_USER
from functions.telemetry.store.client import StoreAddress, StoreAway, TraceStore, TraceStoreRefused
from functions.telemetry.trace_row import RowInvalid

ANSWER_S = 60.0
_NO_TABLE = frozenset({60, 81})
_CLUSTER_USER = "shoal"


class TraceStoreAccess(BaseSettings):
    """Settings from the environment, prefix `SHOAL_CLI_TRACE_STORE_`."""

    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CLI_TRACE_STORE_", frozen=True, extra="ignore", env_ignore_empty=True,
        use_attribute_docstrings=True,
    )  # fmt: skip

    url: str | None = None
    """Address of ClickHouse's HTTP interface. Default: the local fleet's store, or with a context the cluster's."""

    user: str = "default"
    """User that may read the database `shoal`; with `url`."""

    password_file: Path | None = None
    """File with the user's password; with `url`."""

    ca_file: Path | None = None
    """File with the certificate authority of the store; with `url`. Default: the system's."""


@contextmanager
def open_trace_store(context: CliContext, cluster: str | None, namespace: str) -> Iterator[TraceStore]:
    """Open the trace store for one command, and turn its errors into messages for the user."""
    with _address(context, cluster, namespace) as address:
        store = TraceStore(address, answer_s=ANSWER_S)
        try:
            yield store
        except StoreAway as error:
            raise CommandRefused(f"the trace store does not answer: {error}; see `shoal status`") from error
        except TraceStoreRefused as error:
            if error.code in _NO_TABLE:
                raise CommandRefused(
                    "the trace store has no traces yet: a gateway creates its tables with the first one"
                ) from error
            raise CommandRefused(f"the trace store refused: {error}") from error
        except RowInvalid as error:
            raise CommandRefused(f"the trace store has a row that this version cannot read: {error}") from error
        finally:
            store.close()


@contextmanager
def _address(context: CliContext, cluster: str | None, namespace: str) -> Iterator[StoreAddress]:
    access = TraceStoreAccess()
    if access.url is not None:
        yield StoreAddress(access.url, access.user, _read(access.password_file), access.ca_file)
    elif cluster is not None:
        from functions.cli.cluster.access import ClusterChoice
        from functions.cli.cluster.tunnel import TracesTunnel

        tunnel = TracesTunnel(ClusterChoice(cluster, namespace))
        try:
            yield StoreAddress(tunnel.url, _CLUSTER_USER, tunnel.password)
        finally:
            tunnel.close()
    else:
        url = f"http://127.0.0.1:{context.ports.traces}"
        yield StoreAddress(url, TRACES_USER, _read(context.layout.secret(TRACES_PASSWORD)))


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise CommandRefused(
            f"the trace store's password cannot be read: {error}; does this fleet have a store?"
        ) from error


def since_unix_s(ago_s: float) -> float:
    return time.time() - ago_s
