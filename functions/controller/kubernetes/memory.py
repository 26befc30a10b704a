"""Memory of a controller on Kubernetes with the largest supported configuration.

Its informers hold each object as the API server sends it. Memory that a pass needs in addition is released after it.
"""

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.controller.gitops.git import OUTPUT_MAX_BYTES
from functions.controller.kubernetes.run.webhook import BODIES_MAX_BYTES
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part

_BASE_BYTES = 100 * MIB  # measured after all imports: 88
_OBJECT_BYTES = 7_400  # measured: a Model with three versions and its conditions (1.4 kB of JSON)
OBJECTS = 60_000  # objects of the largest snapshot


def most(snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    objects = OBJECTS * snapshot_bytes // SNAPSHOT_MAX_BYTES
    return [
        Part("the process", _BASE_BYTES),
        Part("objects as the API server has them", objects * _OBJECT_BYTES),
        Part("snapshots, published and compiled", snapshot_bytes * (2 * SNAPSHOT_FACTOR + 2)),
        Part("what git says", OUTPUT_MAX_BYTES),
        Part("bodies of webhooks", BODIES_MAX_BYTES),
    ]
