"""Check that the registry's data is in Postgres, and that the password is in a file and not in the address.

A file in the pod would be lost with the next revision: models, keys, rollouts and the audit log.
"""

from collections.abc import Iterator

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tests.manifests.checks.settings import environment_of, module_of
from tests.manifests.rendering import Rendering
from tests.manifests.workloads import workloads

_URL, _PASSWORD_FILE = "SHOAL_REGISTRY_DATABASE_URL", "SHOAL_REGISTRY_DATABASE_PASSWORD_FILE"


def truth_findings(rendering: Rendering) -> Iterator[str]:
    for workload in workloads(rendering):
        for container in workload.containers:
            if module_of(container) == "functions.registry":
                environment = environment_of(container, workload, rendering)
                yield from (f"{workload.name}: {problem}" for problem in _problems(environment))


def _problems(environment: dict[str, str]) -> Iterator[str]:
    try:
        url = make_url(environment.get(_URL, ""))
    except ArgumentError:
        yield f"{_URL} names no database, so the truth lies in the pod, and goes with it"
        return
    if url.get_backend_name() != "postgresql":
        yield f"{_URL} names a {url.get_backend_name()}, which lies in the pod, and goes with it"
    if url.password is not None:
        yield f"{_URL} holds a password; it belongs into a Secret"
    if not environment.get(_PASSWORD_FILE):
        yield f"{_PASSWORD_FILE} is not set"
