"""Parts of a gateway that depend on its settings: limits, optional stores and caches, tools, names and addresses.

Optional parts are imported only if they are configured, because they need large libraries.
"""

import os
import random
import re
import socket
import ssl
import time
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING

import httpx

from functions.fleet.role_credentials import Bearer, CredentialsUnusable, RoleCredentials, read_for
from functions.fleet.valkey_client import Password, password_in
from functions.gateway.chat.tools.calls import ToolPolicy
from functions.gateway.gateway import Gateway
from functions.gateway.http.asgi import RouteProvider
from functions.gateway.http.cors import Origins
from functions.gateway.limits import Limits
from functions.gateway.listeners import StartFailed, bearable_connections
from functions.gateway.services import Services
from functions.gateway.settings import GatewaySettings
from functions.gateway.usage.delivery import UsageDelivery, registry_post
from functions.gateway.usage.spool import UsageSpool

if TYPE_CHECKING:
    from functions.artifacts.s3 import S3Store
    from functions.gateway.batch.service import Batches
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes
    from functions.gateway.prefix.tokenizer_source import FetchTokenizer


def limits_of(settings: GatewaySettings) -> Limits:
    return replace(
        Limits(),
        connections=min(settings.max_connections, bearable_connections()),
        connections_per_address=settings.max_connections_per_address,
        uploads_bytes=settings.uploads_bytes,
        lookups_per_minute=settings.lookups_per_minute,
        media_hosts=frozenset(each.strip().lower() for each in settings.media_hosts.split(",") if each.strip()),
        snapshot_max_age_s=settings.snapshot_max_age_s,
        first_byte_s=settings.first_byte_s,
        idle_s=settings.idle_s,
        sampled_traces=round(settings.otlp_sample_ratio * 2**32) if settings.otlp_endpoint is not None else 0,
        quarantine_after_replicas=settings.quarantine_after_replicas,
        cold_wait_s=settings.jit_wait_s,
        wake_wait_s=settings.wake_wait_s,
        prefix_blocks=settings.prefix_blocks,
    )


def origins(settings: GatewaySettings) -> Origins:
    try:
        return Origins.parse(settings.cors_origins)
    except ValueError as error:
        raise StartFailed(f"SHOAL_GATEWAY_CORS_ORIGINS: {error}") from error


def credentials(settings: GatewaySettings) -> RoleCredentials:
    try:
        return read_for("gateway", settings.internal_token_file)
    except CredentialsUnusable as error:
        raise StartFailed(f"SHOAL_GATEWAY_INTERNAL_TOKEN_FILE: {error}") from error


def exact_prefixes(settings: GatewaySettings) -> "ExactPrefixes | None":
    """Return the exact prefix index if tokenizers are configured, else None. Its import takes an eighth of a second."""
    if settings.tokenizers_dir is None and settings.tokenizers_cache_dir is None:
        return None
    from functions.gateway.prefix.exact_prefixes import ExactPrefixes
    from functions.gateway.prefix.tokenizer_source import TokenizerSource

    fetch = _fetch_tokenizer(settings) if settings.tokenizers_dir is None else None
    return ExactPrefixes(TokenizerSource(settings.tokenizers_dir, fetch, time.monotonic, random.random), time.monotonic)


def _fetch_tokenizer(settings: GatewaySettings) -> "FetchTokenizer":
    from functions.artifacts.tokenizers import TokenizerCache

    assert settings.tokenizers_cache_dir is not None
    store = _store(settings, settings.models_bucket)
    return partial(TokenizerCache(settings.tokenizers_cache_dir, settings.tokenizers_cache_max_bytes).obtain, store)


def batches(settings: GatewaySettings, gateway: Gateway) -> "tuple[Batches | None, list[RouteProvider]]":
    """Return the batch service and its routes, or None and no routes if no object store is configured.

    The store's client needs 25 MB.
    """
    if settings.s3_endpoint_url is None:
        return None, []
    from functions.gateway.batch import routes
    from functions.gateway.batch.limits import BatchLimits
    from functions.gateway.batch.service import Batches

    limits = replace(
        BatchLimits(),
        file_bytes=settings.file_max_bytes,
        file_retention_s=settings.file_retention_days * 24 * 3600,
        lines_in_flight=settings.batch_lines_in_flight,
        lines_in_flight_per_tenant=max(1, settings.batch_lines_in_flight // 2),
    )
    service = Batches(
        gateway.services, gateway.handle, _store(settings, settings.batches_bucket, needs_conditions=True), limits
    )
    return service, [partial(routes.add_routes, service)]


def _store(settings: GatewaySettings, bucket: str, *, needs_conditions: bool = False) -> "S3Store":
    """Return the object store's bucket. Raises StartFailed if the URL or the credentials file is missing or wrong."""
    from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials

    if settings.s3_endpoint_url is None:
        raise StartFailed("SHOAL_GATEWAY_S3_ENDPOINT_URL is not set, though TOKENIZERS_CACHE_DIR is")
    if settings.s3_credentials_file is None:
        raise StartFailed("SHOAL_GATEWAY_S3_CREDENTIALS_FILE is not set, though there is an S3_ENDPOINT_URL")
    try:
        credentials = load_credentials(settings.s3_credentials_file)
    except CredentialsInvalid as error:
        raise StartFailed(str(error)) from error
    return S3Store(S3Settings(settings.s3_endpoint_url, credentials, bucket, needs_conditions=needs_conditions))


def tool_policy(settings: GatewaySettings) -> ToolPolicy:
    """Return the networks, certificates and secrets for tool calls. Raises StartFailed if a network is malformed."""
    try:
        networks = tuple(ip_network(text.strip()) for text in settings.tool_private_networks.split(",") if text.strip())
    except ValueError as error:
        raise StartFailed(f"SHOAL_GATEWAY_TOOL_PRIVATE_NETWORKS: {error}") from error
    return ToolPolicy(networks=networks, ca_file=settings.tool_ca_file, secrets_dir=settings.tool_secrets_dir)


def own_name(settings: GatewaySettings) -> str:
    """Return the host's name and the port, so that a successor at the same address has the same name.

    Gateways that share a port run at the same time, so their names contain the process id, too.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:100]
    return f"{host}-{settings.port}-{os.getpid()}" if settings.reuse_port else f"{host}-{settings.port}"


def registry_trust(settings: GatewaySettings) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(settings.registry_ca_file) if settings.registry_ca_file else None)


def registry_client(settings: GatewaySettings) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=settings.registry_url, verify=registry_trust(settings), trust_env=False)


def usage_delivery(settings: GatewaySettings, services: Services, bearer: Bearer) -> UsageDelivery:
    """Return the delivery of usage rows, whose spool is next to the cached snapshot and survives the same restarts."""
    client = httpx.Client(base_url=settings.registry_url, verify=registry_trust(settings), trust_env=False)
    spool = UsageSpool(settings.snapshot_cache_file.with_name("usage"))
    return UsageDelivery(services.usage, spool, registry_post(client, bearer), services.gateway_id, services.clock)


def bus_password(settings: GatewaySettings) -> Password | None:
    return password_in(settings.bus_password_file)
