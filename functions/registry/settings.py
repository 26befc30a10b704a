"""The registry's configuration, from the environment (prefix SHOAL_REGISTRY_)."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class RegistrySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOAL_REGISTRY_", frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field("127.0.0.1", description="Where it listens; loopback unless told otherwise.")
    port: int = Field(8444, ge=1, le=65535, description="TLS where a certificate is given, plain HTTP otherwise.")
    tls_cert_file: Path | None = Field(None, description="PEM chain.")
    tls_key_file: Path | None = Field(None, description="PEM key of the certificate.")
    internal_token_file: Path = Field(description="The token that every other process of the installation shows.")
    bus_url: str = Field("valkey://127.0.0.1:8446/0", description="Where heartbeats come from.")
    bus_password_file: Path | None = Field(None, description="The bus's password.")
    state_dir: Path = Field(description="Where the published snapshot is kept across restarts.")
    max_waiters: int = Field(
        10_000, ge=1, description="Long polls at one time; the next is told 503. Each costs a connection, about 40 KB."
    )
    drain_timeout_s: float = Field(
        5.0, gt=0, description="How long requests may still run after SIGTERM. Long polls end at once."
    )
