"""The node fetcher's configuration, from the environment (prefix SHOAL_NODE_FETCH_)."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class NodeFetchSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_NODE_FETCH_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    listen_host: str = Field("127.0.0.1", description="Where chunks are served; the token is asked for.")
    listen_port: int = Field(0, ge=0, le=65535, description="Its port; 0: any free one, since the tracker is told.")
    advertise_host: str = Field(
        "127.0.0.1", description="This node's IP as its peers reach it (a pod's status.podIP); a literal, no name."
    )
    zone: str = Field("", max_length=64, description="Where the node is; peers of the same zone are asked first.")
    registry_url: str = Field("", description="The tracker; empty: no peers, everything from the store.")
    registry_ca_file: Path | None = Field(None, description="Authority of the registry's certificate.")
    internal_token_file: Path = Field(description="The token that registry and peers ask for.")
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="The store.")
    s3_credentials_file: Path = Field(description='JSON: {"access_key_id", "secret_access_key"}.')
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    cache_dir: Path = Field(description="Artifacts by digest, shared with the agents and engines of the node.")
    down_bytes_per_s: float | None = Field(
        None, gt=0, description="All downloads together; unset: no limit. Leave room for what the node serves."
    )
    up_bytes_per_s: float | None = Field(None, gt=0, description="All uploads to peers together; unset: no limit.")
    max_uploads: int = Field(4, ge=1, le=64, description="At once; each holds one chunk (8 to 64 MiB) in memory.")
    max_requests: int = Field(
        4, ge=1, le=64, description="Chunks on their way from peers; each is held in memory. No more than MAX_UPLOADS."
    )
    origin_requests: int = Field(2, ge=1, le=32, description="Chunks read from the store at once.")
    timeout_s: float = Field(
        3600.0,
        gt=0,
        description="For all digests together: 140 GB at 40 MB/s. What was verified stays for the next try.",
    )
    seed_s: float = Field(
        0.0,
        ge=0,
        description="How long to go on serving afterwards; 60 s carry the stragglers of a fleet that began late.",
    )
