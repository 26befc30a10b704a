"""Configuration of the Kubernetes controller, from the environment (prefix SHOAL_CONTROLLER_)."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.decisions.rollout.evaluation import RolloutTimeouts
from functions.fleet.role_credentials import CredentialsUnusable, RoleCredentials, read_for


class ControllerStartFailed(Exception):
    """The controller cannot start as configured; the message says what to change."""


def credentials_of(settings: "KubernetesSettings") -> RoleCredentials:
    """Return the controller's credentials. Blocks; raises ControllerStartFailed if they are unusable."""
    try:
        return read_for("controller", settings.internal_token_file)
    except CredentialsUnusable as error:
        raise ControllerStartFailed(f"SHOAL_CONTROLLER_INTERNAL_TOKEN_FILE: {error}") from error


class KubernetesSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CONTROLLER_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    source: Literal["kubernetes", "git"] = Field(
        "kubernetes", description="Source of the desired state: custom resources that others deliver, or a git branch."
    )
    namespace: str = Field(
        "shoal", description="Namespace of the custom resources, the Lease and the controller's record."
    )
    models_namespace: str = Field("shoal-models", description="Namespace of the InferenceServices.")
    kubeconfig: Path | None = Field(None, description="A kubeconfig file; if unset, the pod's ServiceAccount is used.")
    host: str = Field(
        "::",
        description="Listen address of health and metrics, for the kubelet and Prometheus. `::`: every address of IPv6 "
        "and IPv4.",
    )
    port: int = Field(8447, ge=0, le=65535, description="Port of health and metrics; 0: any free one.")
    registry_url: str = Field(
        "https://127.0.0.1:8444", description="URL of the registry, which stores and serves the snapshot."
    )
    registry_ca_file: Path | None = Field(None, description="CA of the registry's certificate; if unset, the system's.")
    internal_token_file: Path = Field(
        description="The controller's credentials, as `shoal secrets` makes them; for one version, the internal token."
    )
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="S3 endpoint at which artifacts are looked up.")
    s3_bucket: str = Field("shoal-models", description="The only bucket that the controller reads.")
    s3_credentials_file: Path | None = Field(
        None, description='JSON file: {"access_key_id", "secret_access_key"}; if unset, only pinned digests resolve.'
    )
    models_root: Path = Field(
        Path("/models"),
        description="Folder in which `pvc://` model volumes are mounted; models of a missing one need pinned digests.",
    )
    git_url: str = Field("", description="URL of the git repository, https:// or ssh://; required by the git source.")
    git_branch: str = Field("main", description="Branch that declares the fleet.")
    git_poll_s: float = Field(30.0, gt=0, le=3600, description="Seconds between two fetches of the branch.")
    git_askpass_file: Path | None = Field(None, description="Program that prints the user name or token for https.")
    git_ca_file: Path | None = Field(
        None, description="CA of the git server's certificate if it is a private one; if unset, the system's."
    )
    git_ssh_command: str = Field(
        "", description="SSH command of git, such as `ssh -i /keys/deploy -o UserKnownHostsFile=/keys/hosts`."
    )
    webhook_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the webhook for pushes, at /hooks/git; 0: any free one; unset: no webhook.",
    )
    webhook_secret_file: Path | None = Field(
        None,
        description="File with the secret that signs deliveries, 16 characters or more; the git server has the same.",
    )
    git_dir: Path = Field(
        Path("/var/lib/shoal/git"), description="Folder of the bare clone; lost with the pod, and fetched again."
    )
    settle_s: float = Field(
        0.3, ge=0, le=30, description="Seconds to wait for more changes after the first: one apply is many events."
    )
    resync_s: float = Field(
        300.0,
        gt=0,
        le=86400,
        description="Seconds between two reconciles of an unchanged fleet, for drift and moved pointers.",
    )
    publish_retry_s: float = Field(
        5.0, gt=0, le=300, description="Seconds until the next try while an artifact or a load is still missing."
    )
    control_poll_s: float = Field(
        2.0,
        gt=0,
        le=60,
        description="Seconds between two reads of the annotations that suspend or request a reconcile.",
    )
    status_writes_per_s: float = Field(
        50.0,
        gt=0,
        le=1000,
        description="Status writes per second; at 50, those of 50,000 tenants take 17 minutes once.",
    )
    protect_deletion: bool = Field(
        True,
        description="Put finalizers on models and on policies that others name; needs `patch` on those three kinds.",
    )
    lease_s: float = Field(
        15.0, ge=2, le=120, description="Seconds without a renewal after which another controller may lead."
    )
    renew_deadline_s: float = Field(
        10.0, ge=1, le=100, description="Seconds without a renewal after which a leader stops."
    )
    lease_retry_s: float = Field(2.0, ge=0.1, le=60, description="Seconds between two reads of the Lease.")
    registry_rows_file: Path | None = Field(
        None,
        description="Copy of the registry's models, keys and rollouts; if unset, a new pod fetches them first.",
    )
    rollout_fresh_s: float = Field(
        45.0,
        gt=0,
        le=3600,
        description="Seconds after which a rollout's evidence is ignored; three full reports of the gateways.",
    )
    rollout_load_deadline_s: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="Seconds that a rollout waits for its new version to be loaded, or for a base's lost version.",
    )
    rollout_load_patience_s: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="Seconds for which all replicas may report load failures: a store may be unavailable.",
    )
    scaling_interval_s: float = Field(
        5.0, ge=1, le=60, description="Seconds between two passes of the autoscaler; a promotion waits for the next."
    )
    zones_interval_s: float = Field(
        15.0, ge=1, le=600, description="Seconds between two reads of the nodes' zones and the gateways' nodes."
    )
    slow_after_s: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="Seconds after which a replica slow by itself is replaced, one of a pool at a time; 0: never.",
    )
    slow_backoff_s: float = Field(
        600.0,
        ge=1,
        le=86400,
        description="Seconds after any start in a pool without such a replacement; doubled after each one.",
    )
    max_accelerators: int | None = Field(
        None,
        ge=1,
        description="Limit of accelerators for all scaled pools together, warm replicas included: what a replica's "
        "resources or its workerSpec ask for, and one for a replica on CPU; unset: only the policies' limits.",
    )
    conflicts: Literal["report", "force"] = Field(
        "report", description="Action if another field manager declares a field of the controller."
    )
    gate_timeout_s: float = Field(
        1800.0, gt=0, description="Seconds for a wave to become healthy before it counts as stalled."
    )
    log_level: str = Field("INFO", description="Log level, by Python's name.")

    @property
    def rollout_timeouts(self) -> RolloutTimeouts:
        return RolloutTimeouts(self.rollout_fresh_s, self.rollout_load_deadline_s, self.rollout_load_patience_s)

    otlp_endpoint: str | None = Field(
        None,
        description="URL of an OpenTelemetry collector's OTLP over HTTP, such as http://collector:4318, for events of "
        "pushes and rollouts; unset: none are sent.",
    )
    otlp_headers_file: Path | None = Field(
        None, description="File with `name: value` lines of headers for the collector, such as a token."
    )
    otlp_ca_file: Path | None = Field(None, description="CA of the collector's certificate; if unset, the system's.")

    @model_validator(mode="after")
    def _git_needs_an_address(self) -> "KubernetesSettings":
        if self.source == "git" and not self.git_url:
            raise ValueError("SHOAL_CONTROLLER_GIT_URL is required with SHOAL_CONTROLLER_SOURCE=git")
        return self

    @model_validator(mode="after")
    def _webhook_needs_a_secret(self) -> "KubernetesSettings":
        if self.webhook_port is not None and self.webhook_secret_file is None:
            raise ValueError("SHOAL_CONTROLLER_WEBHOOK_SECRET_FILE is required with SHOAL_CONTROLLER_WEBHOOK_PORT")
        if self.webhook_port is not None and self.source != "git":
            raise ValueError("SHOAL_CONTROLLER_WEBHOOK_PORT is for SHOAL_CONTROLLER_SOURCE=git alone")
        return self
