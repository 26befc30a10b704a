"""Fixtures of the gateway's tests."""

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from functions.gateway.limits import Limits
from tests.gateway.certificates import self_signed
from tests.gateway.engine_rig import Play
from tests.gateway.live import LiveGateway
from tests.gateway.world import limits

HASTY = limits(
    head_s=0.3,
    body_s=0.4,
    keep_alive_s=0.6,
    linger_s=0.1,
    connect_s=0.3,
    first_byte_s=0.3,
    idle_s=0.3,
    write_stall_s=0.4,
)

settings.register_profile("gateway", deadline=None)  # a machine that is shared may take long over anything
settings.load_profile("gateway")


@pytest.fixture
async def play() -> AsyncIterator[Callable[..., Play]]:
    """Makes plays, and clears them away."""
    plays: list[Play] = []

    def make(*replicas: str, **settings: Any) -> Play:
        plays.append(Play(*(replicas or ("r0", "r1", "r2")), **settings))
        return plays[-1]

    yield make
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
    """A gateway with the limits it has in production."""
    with LiveGateway(Limits(), certificate) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def hasty(certificate: tuple[Path, Path]) -> Iterator[LiveGateway]:
    """A gateway with short clocks, so that tests of them do not wait long."""
    with LiveGateway(HASTY, certificate) as gateway:
        yield gateway
