"""The controller's own settings; the local fleet's (`local/settings.py`) say where it all lies."""

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from functions.decisions.rollout.evaluation import RolloutTimeouts


class ControllerSettings(BaseSettings):
    """Read from the environment, prefix `SHOAL_CONTROLLER_`."""

    model_config = SettingsConfigDict(
        env_prefix="SHOAL_CONTROLLER_", frozen=True, extra="ignore", use_attribute_docstrings=True
    )

    config_poll_s: float = Field(1.0, gt=0, le=60)
    """Seconds between two looks at the configuration's files. Default: 1, which a person editing does not notice."""

    publish_retry_s: float = Field(3.0, gt=0, le=300)
    """Seconds until publishing is tried again where something was missing: an artifact, the registry. Default: 3."""

    resync_s: float = Field(60.0, gt=0, le=3600)
    """Seconds between two publications although no file changed: a registry that lost its state gets it back, and an
    artifact pointer that moved is followed. Default: 60."""

    rollout_fresh_s: float = Field(45.0, gt=0, le=3600)
    """Evidence of a rollout older than this is none. Default: 45, three of the gateways' whole reports."""

    rollout_load_deadline_s: float = Field(600.0, gt=0, le=86400)
    """Seconds that a rollout waits for its new version to be loaded, then it is taken back. Default: 600."""

    rollout_load_patience_s: float = Field(20.0, ge=0, le=3600)
    """Seconds that all replicas may say that they cannot load it: a store may be away for a moment. Default: 20."""

    @property
    def patience(self) -> RolloutTimeouts:
        return RolloutTimeouts(self.rollout_fresh_s, self.rollout_load_deadline_s, self.rollout_load_patience_s)

    log_level: str = "INFO"
    """Python's name of the level. Default: INFO, which has one line per change of a process."""
