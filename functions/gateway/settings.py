"""The gateway's configuration, from the environment (prefix SHOAL_GATEWAY_)."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class GatewaySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOAL_GATEWAY_", frozen=True, extra="forbid")

    gateway_id: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description="This gateway's name towards registry and other gateways; unique. Empty: the host's name and port.",
    )
    host: str = Field("127.0.0.1", description="Where clients reach it; loopback unless told otherwise.")
    port: int = Field(8443, ge=1, le=65535, description="TLS where a certificate is given, plain HTTP otherwise.")
    plain_port: int = Field(
        0, ge=0, le=65535, description="A second listener without TLS, for a mesh or a bench; 0: none."
    )
    tls_cert_file: Path | None = Field(None, description="PEM chain.")
    tls_key_file: Path | None = Field(None, description="PEM key of the certificate.")
    metrics_port: int = Field(8445, ge=0, le=65535, description="Prometheus, on the same host; 0: none.")
    registry_url: str = Field("https://127.0.0.1:8444", description="Where snapshots come from.")
    registry_ca_file: Path | None = Field(None, description="Authority of the registry's certificate.")
    internal_token_file: Path = Field(description="The token that registry and gateways share.")
    pepper_file: Path = Field(description="The key of the keys' hashes; without it no key can be checked.")
    bus_url: str = Field("valkey://127.0.0.1:8446/0", description="Where heartbeats come from.")
    bus_password_file: Path | None = Field(None, description="The bus's password.")
    snapshot_cache_file: Path = Field(description="The last good snapshot, for a start without a registry.")
    handover_socket: Path | None = Field(None, description="Where a successor asks for the listening sockets.")
    drain_timeout_s: float = Field(600.0, gt=0, description="How long open streams may run after SIGTERM.")
    handover_drain_timeout_s: float = Field(
        600.0, gt=0, description="The same once a successor serves: nothing waits for this process to end."
    )
    max_connections: int = Field(
        9500, ge=1, description="Client connections; lowered to what the file descriptor limit bears."
    )
    first_byte_s: float = Field(60.0, gt=0, description="How long one replica may take to begin a stream.")
    jit_wait_s: float = Field(
        15.0,
        gt=0,
        le=120,
        description="How long a request may wait for an adapter that no replica has loaded; then 503, and it loads on.",
    )
    idle_s: float = Field(30.0, gt=0, description="The longest silence inside a stream.")
