"""Finalizers of ours on objects that this controller does not look at: taken off, or nobody could delete them.

With the git source, custom resources from before stay in the cluster and are in force no more: what `writes` has put on
them protects nothing. Taken off once a term; the Kubernetes source puts it on again where it is the source again.
"""

from functions.api.kinds.base import API_VERSION
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.objects import Kind, list_at, version_of
from functions.controller.kubernetes.run.writes import FINALIZER, PROTECTED


def release(api: KubeApi, namespace: str) -> int:
    """How many objects were let go. Blocks; KubeError as `api` has them, and where one fails the rest waits."""
    released = 0
    for kind in (Kind(API_VERSION, name) for name in sorted(PROTECTED)):
        if not api.serves(kind):
            continue
        for item in api.list(kind, namespace).items:
            finalizers = list_at(item, "metadata", "finalizers")
            if FINALIZER not in finalizers:
                continue
            others = [each for each in finalizers if each != FINALIZER]
            metadata = {"finalizers": others, "resourceVersion": version_of(item)}
            api.merge_patch(kind, namespace, item["metadata"]["name"], {"metadata": metadata})
            released += 1
    return released
