"""Configuration of the Kubernetes controller, from the environment (prefix SHOAL_CONTROLLER_)."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.decisions.rollout.evaluation import RolloutTimeouts
from functions.fleet.role_credentials import CredentialsUnusable, RoleCredentials, read_for


class StartFailed(Exception):
    """The controller cannot start as configured; the message says what to change."""


def credentials_of(settings: "KubernetesSettings") -> RoleCredentials:
    """Return the controller's credentials. Blocks; raises StartFailed."""
    try:
        return read_for("controller", settings.internal_token_file)
    except CredentialsUnusable as error:
        raise StartFailed(f"SHOAL_CONTROLLER_INTERNAL_TOKEN_FILE: {error}") from error


class KubernetesSettings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CONTROLLER_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    source: Literal["kubernetes", "git"] = Field(
        "kubernetes", description="What is wanted: custom resources that others deliver, or a git branch."
    )
    namespace: str = Field("shoal", description="Where the custom resources, the Lease and the record are.")
    models_namespace: str = Field("shoal-models", description="Where the InferenceServices are.")
    kubeconfig: Path | None = Field(
        None, description="A kubeconfig file; without it, the pod's ServiceAccount is used."
    )
    host: str = Field(
        "::",
        description="Where health and metrics listen: the kubelet and Prometheus ask there. `::`: every address of "
        "IPv6 and IPv4.",
    )
    port: int = Field(8447, ge=0, le=65535, description="Their port; 0: any free one.")
    registry_url: str = Field("https://127.0.0.1:8444", description="Who keeps and hands out the snapshot.")
    registry_ca_file: Path | None = Field(
        None, description="Authority of the registry's certificate; else the system's."
    )
    internal_token_file: Path = Field(
        description="The controller's credentials, as `shoal secrets` makes them; the internal token for one version."
    )
    s3_endpoint_url: str = Field("http://127.0.0.1:8447", description="Where artifacts' addresses are looked up.")
    s3_bucket: str = Field("shoal-models", description="The only bucket that is ever read.")
    s3_credentials_file: Path | None = Field(
        None, description='JSON: {"access_key_id", "secret_access_key"}; without it, only pinned digests resolve.'
    )
    models_root: Path = Field(
        Path("/models"), description="Where `pvc://` model volumes are mounted; a missing one needs pinned digests."
    )
    git_url: str = Field("", description="The repository, https:// or ssh://; for the git source.")
    git_branch: str = Field("main", description="The branch that is the fleet.")
    git_poll_s: float = Field(30.0, gt=0, le=3600, description="Seconds between two looks at the remote.")
    git_askpass_file: Path | None = Field(None, description="A program that prints the user name or token for https.")
    git_ca_file: Path | None = Field(
        None, description="Authority of the git server's certificate, where it is a private one; else the system's."
    )
    git_ssh_command: str = Field("", description="Such as `ssh -i /keys/deploy -o UserKnownHostsFile=/keys/hosts`.")
    webhook_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Where git servers tell of pushes, at /hooks/git; 0: any free one. Unset: no.",
    )
    webhook_secret_file: Path | None = Field(
        None, description="What they sign with: the same secret is set at the git server, 16 characters at least."
    )
    git_dir: Path = Field(Path("/var/lib/shoal/git"), description="A bare clone; lost with the pod, and fetched again.")
    settle_s: float = Field(
        0.3, ge=0, le=30, description="After the first change, how long more are waited for: one apply is many events."
    )
    resync_s: float = Field(
        300.0,
        gt=0,
        le=86400,
        description="Seconds between two reconciles of an unchanged fleet: drift, moved pointers.",
    )
    publish_retry_s: float = Field(
        5.0, gt=0, le=300, description="Seconds until the next try while an artifact or a load is still missing."
    )
    control_poll_s: float = Field(
        2.0,
        gt=0,
        le=60,
        description="Seconds between two looks at the annotations that suspend and ask for a reconcile.",
    )
    status_writes_per_s: float = Field(
        50.0, gt=0, le=1000, description="Statuses a second: 50,000 tenants take 17 minutes once, and spare the server."
    )
    protect_deletion: bool = Field(
        True, description="Finalizers on models and on policies that others name; needs `patch` on those three kinds."
    )
    lease_s: float = Field(15.0, ge=2, le=120, description="After this long without a renewal another may lead.")
    renew_deadline_s: float = Field(10.0, ge=1, le=100, description="After this long without a renewal we do not lead.")
    lease_retry_s: float = Field(2.0, ge=0.1, le=60, description="Between two looks at the Lease.")
    registry_rows_file: Path | None = Field(
        None, description="A copy of the registry's models, keys and rollouts; without it, a new pod must ask first."
    )
    rollout_fresh_s: float = Field(
        45.0, gt=0, le=3600, description="Evidence of a rollout older than this is none: three whole reports."
    )
    rollout_load_deadline_s: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="How long a rollout waits for its new version to be loaded; for a base's that was lost, as long.",
    )
    rollout_load_patience_s: float = Field(
        20.0, ge=0, le=3600, description="How long all replicas may say that they cannot load it: a store may be away."
    )
    scaling_interval_s: float = Field(
        5.0, ge=1, le=60, description="Seconds between two looks at the pools' figures; a promotion waits for the next."
    )
    zones_interval_s: float = Field(
        15.0, ge=1, le=600, description="Seconds between two looks at the nodes' zones and the gateways' nodes."
    )
    slow_after_s: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="A replica that is slow by itself for so long is replaced, one of a pool at a time; 0: not.",
    )
    slow_backoff_s: float = Field(
        600.0,
        ge=1,
        le=86400,
        description="Nobody is, for so long after any start in its pool; twice as long after each such restart.",
    )
    max_accelerators: int | None = Field(
        None,
        ge=1,
        description="Accelerators of all scaled pools together, warm replicas' too: what a replica's resources or its "
        "workerSpec ask for, and one for a replica on CPU; unset: the policies' own.",
    )
    conflicts: Literal["report", "force"] = Field(
        "report", description="What to do where another field manager holds a field of ours."
    )
    gate_timeout_s: float = Field(
        1800.0, gt=0, description="How long a wave may take to become healthy before it counts as stalled."
    )
    log_level: str = Field("INFO", description="Python's name of the level.")

    @property
    def patience(self) -> RolloutTimeouts:
        return RolloutTimeouts(self.rollout_fresh_s, self.rollout_load_deadline_s, self.rollout_load_patience_s)

    otlp_endpoint: str | None = Field(
        None,
        description="An OpenTelemetry collector's OTLP over HTTP, such as http://collector:4318; pushes and rollouts "
        "go there. Unset: none are made.",
    )
    otlp_headers_file: Path | None = Field(
        None, description="`name: value` lines that the collector wants to see, such as a token."
    )
    otlp_ca_file: Path | None = Field(None, description="Authority of its certificate. Default: the system's.")

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
