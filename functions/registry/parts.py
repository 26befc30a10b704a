"""Build the registry's parts from its settings: database, object store, ingest, collector. Nothing is contacted yet."""

import ipaddress
import time
from dataclasses import dataclass, replace
from pathlib import Path

from functions.artifacts.ingest import Ingest, IngestPolicy, StagingBudget
from functions.artifacts.manifest import ADAPTER_LIMITS
from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials
from functions.artifacts.signatures import SignaturePolicy
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.rollout_stats import EvidenceBook
from functions.registry.collecting import GarbageCollector
from functions.registry.declared import DeclaredCatalogue
from functions.registry.fleet_watch import FleetWatch
from functions.registry.ingesting import Ingesting
from functions.registry.principal import Authenticator
from functions.registry.rate_limiter import TenantRateLimiter
from functions.registry.services import RegistryServices
from functions.registry.settings import RegistrySettings
from functions.registry.sharing import SnapshotSharing
from functions.registry.sql.artifacts import ByteLimit
from functions.registry.sql.catalogue_writes import CatalogueLimits
from functions.registry.sql.database import Database
from functions.registry.sql.engine import UrlInvalid, database_url
from functions.registry.sql.ledger import SqlLedger
from functions.registry.store import SnapshotStore


class SettingsWrong(Exception):
    """A setting cannot be used; the message names it and the expected value."""


@dataclass(frozen=True, slots=True)
class Secrets:
    credentials: RoleCredentials
    pepper: str | None = None
    database_password: str | None = None


@dataclass(frozen=True, slots=True)
class RegistryParts:
    services: RegistryServices
    collecting: GarbageCollector | None
    sharing: SnapshotSharing | None  # None for SQLite, whose file only one registry uses

    def close(self) -> None:
        if self.services.ingesting is not None:
            self.services.ingesting.close()
            self.services.ingesting.ingest.store.close()
        self.services.database.close()


def database_from(settings: RegistrySettings, password: str | None) -> Database:
    given = settings.database_url.get_secret_value() if settings.database_url is not None else None
    try:
        url = database_url(given, settings.state_dir)
    except UrlInvalid as error:
        raise SettingsWrong(f"SHOAL_REGISTRY_DATABASE_URL: {error}") from error
    if password is not None and url.get_backend_name() == "sqlite":
        message = "SHOAL_REGISTRY_DATABASE_PASSWORD_FILE is set, but SHOAL_REGISTRY_DATABASE_URL is not a Postgres URL"
        raise SettingsWrong(f"{message}: set one, or unset both")
    return Database(url.set(password=password) if password is not None else url)


def parts_from(settings: RegistrySettings, secrets: Secrets, store: SnapshotStore, fleet: FleetWatch) -> RegistryParts:
    """Build all parts of a registry without connecting to anything. Raises SettingsWrong with the setting to
    correct."""
    database = database_from(settings, secrets.database_password)
    store.fence.use_database(database.raise_fence)
    objects = _objects(settings)
    pepper = secrets.pepper.encode() if secrets.pepper is not None else None
    services = RegistryServices(
        database=database,
        declared=DeclaredCatalogue(store),
        authenticator=Authenticator(
            store, secrets.credentials, pepper, readers=_rate_limiter(settings), writers=_rate_limiter(settings)
        ),
        limits=CatalogueLimits(
            models_per_tenant=settings.max_models_per_tenant,
            versions_per_model=settings.max_versions_per_model,
            channels_per_model=settings.max_channels_per_model,
            snapshot_bytes_per_tenant=settings.max_snapshot_bytes_per_tenant,
            model_names_per_tenant=settings.max_model_names_per_tenant,
            version_names_per_model=settings.max_version_names_per_model,
        ),
        evidence=EvidenceBook(),
        ingesting=_ingesting(settings, objects, database) if objects is not None else None,
        pepper=pepper,
        key_environment=settings.environment,
        max_keys_per_tenant=settings.max_keys_per_tenant,
    )
    sharing = SnapshotSharing(database, store) if not database.is_sqlite else None
    if objects is None:
        return RegistryParts(services, None, sharing)
    collecting = GarbageCollector(objects, database, store, fleet, settings.gc_grace_s, time.time)
    return RegistryParts(services, collecting, sharing)


def _rate_limiter(settings: RegistrySettings) -> TenantRateLimiter:
    return TenantRateLimiter(
        at_once=settings.max_requests_at_once_per_tenant,
        per_s=settings.max_requests_per_s_per_tenant,
        burst=settings.request_burst_per_tenant,
    )


def _objects(settings: RegistrySettings) -> S3Store | None:
    if settings.s3_endpoint_url is None:
        return None
    if settings.s3_credentials_file is None:
        raise SettingsWrong("SHOAL_REGISTRY_S3_ENDPOINT_URL needs SHOAL_REGISTRY_S3_CREDENTIALS_FILE")
    try:
        credentials = load_credentials(settings.s3_credentials_file)
    except CredentialsInvalid as error:
        raise SettingsWrong(str(error)) from error
    return S3Store(S3Settings(settings.s3_endpoint_url, credentials, settings.s3_bucket))


def _ingesting(settings: RegistrySettings, objects: S3Store, database: Database) -> Ingesting:
    keys = tuple(Path(file) for file in _listed(settings.signature_key_files))
    if settings.signatures_required and not keys:
        raise SettingsWrong("SHOAL_REGISTRY_SIGNATURES_REQUIRED needs SHOAL_REGISTRY_SIGNATURE_KEY_FILES")
    if settings.base_facts_required and settings.models_dir is None:
        raise SettingsWrong("SHOAL_REGISTRY_BASE_FACTS_REQUIRED needs SHOAL_REGISTRY_MODELS_DIR")
    ingest = Ingest(
        store=objects,
        staging_root=settings.staging_dir or settings.state_dir / "staging",
        policy=_policy(settings),
        signatures=SignaturePolicy(keys=keys, required=settings.signatures_required),
        budget=StagingBudget(settings.staging_max_bytes),
        ledger=SqlLedger(database),
    )
    return Ingesting(
        ingest=ingest,
        database=database,
        models_dir=settings.models_dir,
        max_rank=settings.max_lora_rank,
        at_once=settings.uploads_at_once,
        at_once_per_tenant=settings.uploads_at_once_per_tenant,
        tenant_limit=ByteLimit(settings.max_artifact_bytes_per_tenant, settings.gc_grace_s),
        facts_required=settings.base_facts_required,
    )


def _policy(settings: RegistrySettings) -> IngestPolicy:
    try:
        networks = tuple(ipaddress.ip_network(text) for text in _listed(settings.ingest_private_networks))
    except ValueError as error:
        raise SettingsWrong(f"SHOAL_REGISTRY_INGEST_PRIVATE_NETWORKS: {error}") from error
    most = settings.max_adapter_bytes
    if most > settings.staging_max_bytes // 2:
        raise SettingsWrong("SHOAL_REGISTRY_MAX_ADAPTER_BYTES is over half of SHOAL_REGISTRY_STAGING_MAX_BYTES")
    return IngestPolicy(
        limits=replace(ADAPTER_LIMITS, max_file_bytes=most, max_total_bytes=most),
        https_hosts=tuple(host.lower() for host in _listed(settings.ingest_https_hosts)),
        https_networks=networks,
        https_ca_file=settings.ingest_https_ca_file,
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
