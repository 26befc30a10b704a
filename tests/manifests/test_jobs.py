"""Jobs and pods beside the overlays pass the overlays' checks and are admitted by a real API server."""

import pytest
from kubernetes.dynamic import DynamicClient

from tests.controller.kubernetes.api_server import ApiServer
from tests.controller.kubernetes.fixtures import TIMEOUT_S
from tests.manifests.checks.hardening import hardening_findings
from tests.manifests.checks.images import image_findings
from tests.manifests.rendering import MANIFESTS, Rendering, render
from tests.manifests.test_real_server import apply, dropped
from tests.manifests.workloads import workloads

JOBS = sorted(path.parent.name for path in (MANIFESTS / "jobs").glob("*/kustomization.yaml"))


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest) -> Rendering:
    return render(MANIFESTS / "jobs" / request.param)


def test_passes_what_every_pod_passes(job: Rendering) -> None:
    assert [*hardening_findings(job), *image_findings(job)] == []
    assert len([each for each in workloads(job) if each.once]) == 1


def test_a_job_that_may_run_as_root_is_noticed(job: Rendering) -> None:
    mutated = job.copied()
    (workload,) = workloads(mutated)
    workload.pod["securityContext"]["runAsNonRoot"] = False
    assert any("may run as root" in each for each in hardening_findings(mutated))


def test_the_volume_is_the_overlays_own(job: Rendering, staging: Rendering, production: Rendering) -> None:
    (workload,) = workloads(job)
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in workload.pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    for rendering in (staging, production):
        for claim in claims:
            rendering.one("PersistentVolumeClaim", claim, workload.namespace)


@pytest.mark.servers
@pytest.mark.timeout(TIMEOUT_S)
def test_is_admitted_in_its_namespace(api_server: ApiServer, job: Rendering, staging: Rendering) -> None:
    """The server warns about pods that violate `restricted`; none may."""
    client: DynamicClient = api_server.client()
    for needed in staging.of("Namespace", "ServiceAccount"):
        apply(client, needed, dry_run=False)
    for document in job.documents:
        assert list(dropped(document, apply(client, document, dry_run=True))) == []
