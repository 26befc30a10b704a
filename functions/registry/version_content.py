"""Content of a version: it must be in the store and fit the base that the version names.

    named by its address   version unchanged → its content     otherwise ingest it, checked against the base
    named by its digest    version unchanged → its content     otherwise check once that it fits this base
                                                               (one check for concurrent requests; recorded)

An engine that loads an adapter of another base fails inside its step, together with all requests in it. So content is
checked again if it was ingested without a base, for another base, or before the base changed. If the base's facts are
missing (SHOAL_REGISTRY_MODELS_DIR), only the engine detects the mismatch, or the version is rejected
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
    digest: str | None  # either this or the address
    artifact_uri: str | None

    @property
    def tenant(self) -> TenantId:
        return TenantId(self.model.partition("/")[0])


@dataclass(frozen=True, slots=True)
class Content:
    digest: str
    uri: str = ""


async def content_of(services: RegistryServices, actor: Actor, wanted: VersionRequest) -> Content:
    """Return digest and URI of the version's content, which is fetched from its URI unless that was done before, or
    checked against its base. Raises ArtifactRefused if it does not fit, ApiError if it cannot be checked now."""
    known = await _known_version(services, wanted)
    if wanted.artifact_uri is None:
        digest = Digest(wanted.digest or "")
        if known is None or known.digest != digest:
            await _check_fitting(services, wanted, digest)
        return Content(digest)
    if known is not None and known.artifact_uri == wanted.artifact_uri:
        return Content(known.digest, known.artifact_uri)  # a version never changes, so nothing is fetched again
    if services.ingesting is None:
        raise no_store()
    with services.ingesting.reserve_place(wanted.tenant):
        # The version's tenant owns the content and limits the allowed addresses, also if an operator registers it.
        expect = await services.expectation(wanted.tenant, wanted.base)
        ingested, _ = await services.ingesting.from_uri(wanted.artifact_uri, expect, actor)
    return Content(ingested.digest, wanted.artifact_uri)


def no_store() -> ApiError:
    message = "this registry has no object store configured (SHOAL_REGISTRY_S3_ENDPOINT_URL): adapters cannot be stored"
    return ApiError(503, "no_store", message)


async def _check_fitting(services: RegistryServices, wanted: VersionRequest, digest: Digest) -> None:
    """Check the content against the base that the version names and record that it fits, unless this was done before or
    nothing is known of the base. Raises ArtifactRefused if it does not fit."""
    ingesting, database, tenant = services.ingesting, services.database, wanted.tenant
    if ingesting is None:
        return  # no content was ingested here, so nothing can be checked
    expect = await services.expectation(tenant, wanted.base)
    fingerprint = expect.base_fingerprint
    if expect.base is None or not await _is_unchecked(database, tenant, digest, fingerprint):
        return
    async with services.checks.lock_for(tenant, digest, fingerprint):
        if await _is_unchecked(database, tenant, digest, fingerprint):  # a concurrent request may have checked it
            async with ingesting.wait_for_place(tenant):
                await ingesting.check(digest, expect)
            fits = artifacts.record_fit
            await database.run(lambda: database.write_unaudited(lambda c: fits(c, digest, tenant, fingerprint)))


async def _is_unchecked(database: Database, tenant: TenantId, digest: Digest, fingerprint: str) -> bool:
    found = await database.run(lambda: database.read(lambda c: artifacts.find(c, digest, tenant)))
    return found is not None and fingerprint not in found.checked


async def _known_version(services: RegistryServices, wanted: VersionRequest) -> StoredVersion | None:
    database = services.database
    stored = await database.run(lambda: database.read(lambda c: catalogue.model(c, wanted.model)))
    return stored.version(wanted.version) if stored is not None else None
