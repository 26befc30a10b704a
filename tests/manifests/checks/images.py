"""Check images: each has a tag, shoal's own are those that are built here, and all others are pinned by digest.

Digests of third-party images (Valkey's) are known only where they can be pulled; `shoal doctor` reports them.
"""

import re
from collections.abc import Iterator

from tests.manifests.containerfiles import targets
from tests.manifests.rendering import PROJECT, Rendering
from tests.manifests.workloads import workloads

OWN = "registry.example.com/shoal/"  # a placeholder that `images:` of an overlay replaces
_IMAGE = re.compile(r"(?P<name>[a-z0-9.-]+(?::[0-9]+)?/[a-z0-9._/-]+)(?::(?P<tag>[\w.-]+))?(?:@sha256:[0-9a-f]{64})?")


def image_findings(rendering: Rendering) -> Iterator[str]:
    built = {target for file in sorted((PROJECT / "images").glob("Containerfile*")) for target in targets(file)}
    for workload in workloads(rendering):
        if workload.foreign:
            continue
        for container in workload.containers:
            image = container.get("image", "")
            match = _IMAGE.fullmatch(image)
            if match is None:
                yield f"{workload.name}: {container['name']} has the image {image!r}, which names no registry"
            elif "@sha256:" not in image and match["tag"] in (None, "latest"):
                yield f"{workload.name}: {image} has no version"
            elif not image.startswith(OWN) and "@sha256:" not in image and match["name"].rpartition("/")[2] in built:
                yield f"{workload.name}: {image} is shoal's, by a tag: pin its digest (docs/how-to/kubernetes.md)"
            elif image.startswith(OWN) and match["name"].removeprefix(OWN) not in built:
                yield f"{workload.name}: {image} is built by no target of images/"
