"""Memory of a registry where every bound of its settings is reached at once."""

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.fleet.rollout_stats import MAX_BYTES
from functions.registry.console.samples import MOST_BYTES as SAMPLES_BYTES
from functions.registry.console.tenants import MOST_BYTES as USE_BYTES
from functions.registry.settings import RegistrySettings
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part

_BASE_BYTES = 108 * MIB  # measured (docs/measurements/sizing.md)
_CONNECTION_BYTES = 40_000  # measured, of a long poll
_UPLOAD_BYTES = 24 * MIB  # a thread, its blocks, and parts on their way to the store


def most(settings: RegistrySettings, snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", settings.max_connections * _CONNECTION_BYTES),
        Part("snapshots, old, new and arriving", snapshot_bytes * (2 * (SNAPSHOT_FACTOR + 1) + 2)),
        Part("uploads", settings.uploads_at_once * _UPLOAD_BYTES),
        Part("evidence of rollouts", MAX_BYTES),
        Part("samples of pools", SAMPLES_BYTES),
        Part("use of tenants", USE_BYTES),
    ]
