"""Mounts of a container as temporary folders, and texts whose paths are moved to those folders."""

from pathlib import Path
from typing import Any

from tests.manifests.rendering import Rendering
from tests.manifests.workloads import Workload


def mounted(workload: Workload, container: dict[str, Any], rendering: Rendering, folder: Path) -> dict[str, Path]:
    """Return a folder per mount, filled from the ConfigMap that is mounted there."""
    volumes = {volume["name"]: volume for volume in workload.pod["volumes"]}
    folders = {}
    for mount in container["volumeMounts"]:
        path = folder / "mounts" / mount["name"]
        path.mkdir(parents=True, exist_ok=True)
        folders[mount["mountPath"]] = path
        config = volumes.get(mount["name"], {}).get(
            "configMap", {"optional": True}
        )  # a claim template is not among the pod's volumes
        if not config.get("optional"):
            for file, content in rendering.one("ConfigMap", config["name"], workload.namespace)["data"].items():
                (path / file).write_text(content)
    return folders


def moved(text: str, folders: dict[str, Path]) -> str:
    for path in sorted(folders, key=len, reverse=True):
        text = text.replace(path, str(folders[path])) if path != "/tmp" else text
    return text
