"""Both overlays, and the component that switches the source to git, pass every check when rendered offline."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from functions.api.kinds.inference_service import POOL_LABEL
from functions.api.loader import load_texts
from functions.controller.kubernetes.render import render as rendered_by_controller
from tests.manifests.checks.hardening import hardening_findings
from tests.manifests.checks.images import image_findings
from tests.manifests.checks.lifetimes import lifetime_findings
from tests.manifests.checks.models import model_findings
from tests.manifests.checks.network import network_findings
from tests.manifests.checks.parity import parity_findings
from tests.manifests.checks.rbac import rbac_findings
from tests.manifests.checks.references import documented_secrets, reference_findings, used_secrets
from tests.manifests.checks.schemas import Check, own_kind_findings, schema_findings, webhook_findings
from tests.manifests.checks.settings import settings_findings
from tests.manifests.checks.spread import spread_findings
from tests.manifests.checks.truth import truth_findings
from tests.manifests.rendering import PROJECT, Rendering, over, render

CHECKS: list[Check] = [
    hardening_findings,
    image_findings,
    lifetime_findings,
    model_findings,
    network_findings,
    own_kind_findings,
    parity_findings,
    rbac_findings,
    reference_findings,
    settings_findings,
    spread_findings,
    truth_findings,
    webhook_findings,
]


@pytest.fixture(scope="session")
def with_git_source(staging: Rendering) -> Rendering:
    """Staging as a region with the git source and its webhook, plus the pool that the controller applies."""
    pools = render(PROJECT / "inferenceservices").documents
    return Rendering([*over("staging", "git-source", "git-webhook", "region").documents, *pools])


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_pools_with_autoscaling_declare_no_replica_count(overlay: str, request: pytest.FixtureRequest) -> None:
    """An applied minReplicas would override the autoscaler."""
    rendering: Rendering = request.getfixturevalue(overlay)
    scaled = {policy["spec"]["pool"] for policy in rendering.of("AutoscalingPolicy")}
    pools = {
        each["metadata"]["labels"]["shoal.dev/pool"]: each["spec"]["predictor"]
        for each in rendering.of("InferenceService")
        if "shoal.dev/pool" in each["metadata"].get("labels", {})
    }
    assert scaled
    assert scaled <= pools.keys()
    assert [pool for pool, predictor in pools.items() if ("minReplicas" in predictor) == (pool in scaled)] == []


@pytest.mark.parametrize("check", CHECKS)
def test_staging_passes(check: Check, staging: Rendering) -> None:
    assert list(check(staging)) == []


@pytest.mark.parametrize("check", CHECKS)
def test_production_passes(check: Check, production: Rendering) -> None:
    assert list(check(production)) == []


@pytest.mark.parametrize("check", CHECKS)
def test_git_source_passes(check: Check, with_git_source: Rendering) -> None:
    assert list(check(with_git_source)) == []


@pytest.mark.parametrize("name", ["staging", "production", "with_git_source"])
def test_fits_the_schemas_of_kserve_and_knative(name: str, crds_dir: Path, request: pytest.FixtureRequest) -> None:
    assert list(schema_findings(crds_dir)(request.getfixturevalue(name))) == []


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_both_sources_put_a_pool_there_with_what_is_written_for_its_pods(
    overlay: str, request: pytest.FixtureRequest
) -> None:
    """Neither source adds a spread, strategy or grace period, so a change of source replaces no pod."""
    delivered: Rendering = request.getfixturevalue(overlay)
    files = [PROJECT / "inferenceservices", PROJECT / "inferenceservices" / "fleet"]
    texts = [(file.name, file.read_bytes()) for folder in files for file in sorted(folder.glob("*.yaml"))]
    services = [(name, text) for name, text in texts if not name.startswith("kustomization")]
    objects = rendered_by_controller(load_texts(services), "r").desired.objects
    applied = {each.ref.name: each.body["spec"] for each in objects if each.ref.kind == "InferenceService"}
    pools = [each for each in delivered.of("InferenceService") if POOL_LABEL in each["metadata"].get("labels", {})]
    assert pools
    for pool in pools:
        number = {"minReplicas", "maxReplicas"}
        theirs = {key: it for key, it in pool["spec"]["predictor"].items() if key not in number}
        ours = {key: it for key, it in applied[pool["metadata"]["name"]]["predictor"].items() if key not in number}
        assert ours == theirs
        assert len(ours["topologySpreadConstraints"]) == 2


def test_git_source_brings_its_rights_with_it(production: Rendering, with_git_source: Rendering) -> None:
    assert not _may_make_pools(production), "the autoscaler patches one field of what is there"
    assert _may_make_pools(with_git_source)


def test_every_documented_secret_is_used(staging: Rendering, with_git_source: Rendering) -> None:
    documented = {(namespace, name) for namespace, name, _ in documented_secrets()}
    assert documented == used_secrets(staging) | used_secrets(with_git_source)


def test_nothing_secret_is_checked_in(staging: Rendering, production: Rendering) -> None:
    assert [*staging.of("Secret"), *production.of("Secret")] == []


def _may_make_pools(rendering: Rendering) -> bool:
    rules = [
        rule for role in rendering.of("Role") for rule in role["rules"] if "inferenceservices" in rule["resources"]
    ]
    return any({"create", "delete"} & set(rule["verbs"]) for rule in rules)


@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_the_registry_believes_no_database_that_it_cannot_verify(overlay: str, request: pytest.FixtureRequest) -> None:
    """`sslmode=require` encrypts but verifies no certificate: a man in the middle could read and write all keys."""
    rendering: Rendering = request.getfixturevalue(overlay)
    url = rendering.one("ConfigMap", "shoal-installation", "shoal")["data"]["database-url"]
    options = parse_qs(urlsplit(url).query)
    mounts = rendering.one("Service", "registry", "shoal", group="serving.knative.dev")["spec"]["template"]["spec"][
        "containers"
    ][0]["volumeMounts"]
    assert options["sslmode"] == ["verify-full"]
    assert str(Path(options["sslrootcert"][0]).parent) in {mount["mountPath"] for mount in mounts}
