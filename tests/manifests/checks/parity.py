"""Check parity of the two targets: each container sets exactly what `settings_sources` lists for the manifests."""

from collections.abc import Iterator

from tests.manifests.checks.settings import module_of
from tests.manifests.rendering import Rendering
from tests.manifests.settings_sources import PROCESSES, variable
from tests.manifests.workloads import workloads


def parity_findings(rendering: Rendering) -> Iterator[str]:
    for workload in workloads(rendering):
        for container in workload.containers:
            process = PROCESSES.get(module_of(container) or "")
            if process is None:
                continue
            given = {entry["name"] for entry in container.get("env", [])}
            for field, source in process.sources.items():
                name = variable(process, field)
                if source.manifests == "always" and name not in given:
                    yield f"{workload.name}: {container['name']} does not set {name}, which settings_sources has set"
                if source.manifests == "never" and name in given:
                    yield f"{workload.name}: {container['name']} sets {name}, which settings_sources leaves unset"
