"""Fixtures of the gateway's tests."""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from functions.gateway.limits import Limits
from tests.gateway.certificates import self_signed
from tests.gateway.engine_rig import Play
from tests.gateway.live import LiveGateway
from tests.gateway.rig import limits
from tests.replica.conftest import s3_settings, store, valkey_url

__all__ = ["s3_settings", "store", "valkey_url"]

# Only the timeouts that tests wait for are short, and still long enough for a machine that is five times slower.
HASTY = limits(head_s=1.0, body_s=1.0, keep_alive_s=1.5, linger_s=0.3, first_byte_s=1.0, idle_s=1.0, write_stall_s=1.0)


@pytest.fixture
async def play() -> AsyncIterator[Callable[..., Play]]:
    """Make plays and close them after the test."""
    plays: list[Play] = []

    def make_play(*replicas: str, **settings: Any) -> Play:
        plays.append(Play(*(replicas or ("r0", "r1", "r2")), **settings))
        return plays[-1]

    yield make_play
    for one in plays:
        await one.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.fixture(scope="module")
def live(certificate: tuple[Path, Path]) -> Iterator[LiveGateway]:
    """A gateway with production limits."""
    with LiveGateway(Limits(), certificate) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def hasty(certificate: tuple[Path, Path]) -> Iterator[LiveGateway]:
    """A gateway with short timeouts, for tests that wait for one to expire."""
    with LiveGateway(HASTY, certificate) as gateway:
        yield gateway
