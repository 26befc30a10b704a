"""Each check finds and describes the one mistake that was put into a rendering.

This proves that the checks do not simply pass everything.
"""

from pathlib import Path

import pytest

from tests.manifests.checks.schemas import schema_findings
from tests.manifests.mistakes import AGENT, Change, Mistake, container, gateway, pool, runtime
from tests.manifests.mistakes_in_links import LINK_MISTAKES
from tests.manifests.mistakes_in_pods import POD_MISTAKES
from tests.manifests.rendering import Rendering


@pytest.mark.parametrize("mistake", [*POD_MISTAKES, *LINK_MISTAKES], ids=lambda mistake: mistake.what)
def test_is_found(mistake: Mistake, staging: Rendering) -> None:
    mutated = staging.copied()
    mistake.make(mutated)
    findings = list(mistake.check(mutated))
    assert any(mistake.told in finding for finding in findings), findings


SCHEMA_MISTAKES: list[tuple[str, Change, str]] = [
    ("misspelt in Knative", lambda r: gateway(r).update(timeOutSeconds=900), "timeOutSeconds"),
    ("not Knative's", lambda r: gateway(r).update(terminationGracePeriodSeconds=900), "terminationGracePeriodSeconds"),
    ("hook in Knative", lambda r: container(gateway(r)).update(lifecycle={}), "lifecycle"),
    ("misspelt in a runtime", lambda r: runtime(r).update(supportedModelFormat=[]), "supportedModelFormat"),
    (
        "pod field in a runtime",
        lambda r: runtime(r).update(terminationGracePeriodSeconds=60),
        "terminationGracePeriodSeconds",
    ),
    ("priority of 0", lambda r: runtime(r)["supportedModelFormats"][0].update(priority=0), "priority"),
    ("words for a number", lambda r: pool(r).update(minReplicas="two"), "minReplicas"),
    ("misspelt in a pool", lambda r: pool(r)["model"].update(storageURI="pvc://x/y"), "storageURI"),
    (
        "misspelt in a probe",
        lambda r: container(runtime(r), AGENT)["livenessProbe"].update(failureTreshold=3),
        "failureTreshold",
    ),
    ("unknown to a tenant", lambda r: r.one("Tenant", "acme")["spec"].update(teir="x"), "teir"),
    ("unknown kind", lambda r: r.one("Tenant", "acme").update(kind="Tennant"), "no CRD says"),
]


@pytest.mark.parametrize(("what", "make", "told"), SCHEMA_MISTAKES, ids=[what for what, _, _ in SCHEMA_MISTAKES])
def test_schema_check_finds_the_mistake(what: str, make: Change, told: str, staging: Rendering, crds_dir: Path) -> None:
    mutated = staging.copied()
    make(mutated)
    findings = list(schema_findings(crds_dir)(mutated))
    assert any(told in finding for finding in findings), findings
