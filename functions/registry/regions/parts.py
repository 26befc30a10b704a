"""Parts of a registry that communicate with other regions, from its settings. Nothing is contacted yet."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from functions.artifacts.s3 import S3Store
from functions.fleet.quota_regions import RegionBus
from functions.fleet.regions import RegionsUnreadable
from functions.fleet.tasks import Supervised
from functions.fleet.valkey_client import Password
from functions.registry.regions.client import RegionAccess
from functions.registry.regions.following import RegionsFollower
from functions.registry.services import RegistryServices
from functions.registry.settings import RegistrySettings


@dataclass(frozen=True, slots=True)
class RegionParts:
    token: str
    follower: RegionsFollower
    bus: RegionBus
    objects: S3Store | None

    def start_tasks(self, tasks: Supervised) -> None:
        tasks.forever("regions", self.follower.run, expected=(RegionsUnreadable,))

    async def close(self) -> None:
        await self.follower.close()
        await self.bus.close()


def region_parts(
    settings: RegistrySettings,
    token: str | None,
    bus_password: Password | None,
    services: RegistryServices,
    clock: Callable[[], float] = time.monotonic,
) -> RegionParts | None:
    """Make the parts that follow other regions, or return None if no region is set, as this is then the only one.
    Raises ValueError with the missing setting."""
    if settings.region is None:
        return None
    if settings.regions_file is None or token is None:
        raise ValueError(
            "SHOAL_REGISTRY_REGION needs SHOAL_REGISTRY_REGIONS_FILE and SHOAL_REGISTRY_REGIONS_TOKEN_FILE"
        )
    bus = RegionBus(settings.bus_url, password=bus_password)
    access = RegionAccess(token, settings.regions_ca_file)
    follower = RegionsFollower(settings.region, settings.regions_file, access, services, bus, clock=clock)
    objects = services.ingesting.ingest.store if services.ingesting is not None else None
    return RegionParts(token, follower, bus, objects)
