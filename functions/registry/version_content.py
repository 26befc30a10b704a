"""Content of a version: it is in the store, and fits the base which the version names.

    named by its address   known already → that         else bring it in, checked against the base
    named by its digest    known already → that         else was it found to fit this base? check it now, if not: once
                                                        for all who name it meanwhile, and that is written at once

An engine that is given another base's adapter fails inside its step, with everybody's requests in it: so what came in
without a base, for another one, or before the base has changed, is checked again. Where no facts of the base are at
hand (SHOAL_REGISTRY_MODELS_DIR), the engine is the one who says so, or nothing is taken
(SHOAL_REGISTRY_BASE_FACTS_REQUIRED).
"""

from dataclasses import dataclass

from functions.api.ids import Digest, ModelId, TenantId
from functions.registry.errors import ApiError
from functions.registry.services import RegistryServices
from functions.registry.sql import artifacts, catalogue
from functions.registry.sql.audit import Actor
from functions.registry.sql.catalogue import StoredVersion
from functions.registry.sql.database import Database


@dataclass(frozen=True, slots=True)
class VersionRequest:
    model: ModelId
    version: str
    base: str
    digest: str | None  # this or the address
    artifact_uri: str | None

    @property
    def tenant(self) -> TenantId:
        return TenantId(self.model.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Content:
    digest: str
    uri: str = ""


async def content_of(services: RegistryServices, actor: Actor, wanted: VersionRequest) -> Content:
    """The version's content; ArtifactRefused where it does not fit, ApiError where it cannot be looked at now."""
    known = await _known_version(services, wanted)
    if wanted.artifact_uri is None:
        digest = Digest(wanted.digest or "")
        if known is None or known.digest != digest:
            await _check_fitting(services, wanted, digest)
        return Content(digest)
    if known is not None and known.artifact_uri == wanted.artifact_uri:
        return Content(known.digest, known.artifact_uri)  # a version never changes: there is nothing to fetch again
    if services.ingesting is None:
        raise no_store()
    with services.ingesting.place(wanted.tenant):
        # The operator may name places of the operator's own; what comes from there belongs to the tenant all the same.
        expect = await services.expectation(wanted.tenant, wanted.base)
        ingested, _ = await services.ingesting.from_uri(wanted.artifact_uri, expect, actor)
    return Content(ingested.digest, wanted.artifact_uri)


def no_store() -> ApiError:
    message = "this registry has no object store configured (SHOAL_REGISTRY_S3_ENDPOINT_URL): nothing can be brought in"
    return ApiError(503, "no_store", message)


async def _check_fitting(services: RegistryServices, wanted: VersionRequest, digest: Digest) -> None:
    """Check the content against the base that the version names, where that was not done before."""
    ingesting, database, tenant = services.ingesting, services.database, wanted.tenant
    if ingesting is None:
        return  # nothing has come in here, so there is nothing to check
    expect = await services.expectation(tenant, wanted.base)
    fingerprint = expect.base_fingerprint
    if expect.base is None or not await _is_unchecked(database, tenant, digest, fingerprint):
        return
    async with services.checks.of(tenant, digest, fingerprint):
        if await _is_unchecked(database, tenant, digest, fingerprint):  # it may have been, while this one waited
            async with ingesting.place_soon(tenant):
                await ingesting.check(digest, expect)
            fits = artifacts.fits
            await database.run(lambda: database.unaudited(lambda c: fits(c, digest, tenant, fingerprint)))


async def _is_unchecked(database: Database, tenant: TenantId, digest: Digest, fingerprint: str) -> bool:
    found = await database.run(lambda: database.read(lambda c: artifacts.find(c, digest, tenant)))
    return found is not None and fingerprint not in found.checked


async def _known_version(services: RegistryServices, wanted: VersionRequest) -> StoredVersion | None:
    database = services.database
    stored = await database.run(lambda: database.read(lambda c: catalogue.model(c, wanted.model)))
    return stored.version(wanted.version) if stored is not None else None
