"""Memory of a controller on Kubernetes with the largest configuration that there may be.

Its informers keep each object as the API server says it. What a pass needs of them besides is let go of with the pass.
"""

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.controller.gitops.git import OUTPUT_MAX_BYTES
from functions.controller.kubernetes.run.webhook import BODIES_MAX_BYTES
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part

_BASE_BYTES = 100 * MIB  # measured of one that has imported all: 88
_OBJECT_BYTES = 7_400  # measured, of a Model with three versions and its conditions (1.4 kB of JSON)
OBJECTS = 60_000  # of the largest snapshot


def most(snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    objects = OBJECTS * snapshot_bytes // SNAPSHOT_MAX_BYTES
    return [
        Part("the process", _BASE_BYTES),
        Part("objects as the API server has them", objects * _OBJECT_BYTES),
        Part("snapshots, published and compiled", snapshot_bytes * (2 * SNAPSHOT_FACTOR + 2)),
        Part("what git says", OUTPUT_MAX_BYTES),
        Part("bodies of webhooks", BODIES_MAX_BYTES),
    ]
