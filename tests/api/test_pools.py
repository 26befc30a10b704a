"""Shared and dedicated pools: settings without effect are reported with their place."""

import pytest

from functions.api.problems import ConfigInvalid
from tests.api.sources import FILES, load

SERVICE = """\
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
  labels: {{shoal.dev/pool: {name}, shoal.dev/model: {model}{labels}}}
  annotations: {{{annotations}}}
spec:
  predictor:
    minReplicas: 1
    model: {{modelFormat: {{name: vLLM}}, storageUri: "{uri}", args: [--max-model-len=2048]}}
"""
BASE, POLICIES, TENANTS = "smollm2-135m", "policies/policies.yaml", "policies/tenants.yaml"


def service(name: str = "spot", *, model: str = BASE, labels: str = "", annotations: str = "", uri: str = "") -> str:
    uri = uri or f"pvc://shoal-models/{BASE}"
    return SERVICE.format(name=name, model=model, labels=labels, annotations=annotations, uri=uri)


def files(
    *services: str,
    isolation: str = "shared",
    placement: str = "",
    fallback: str = "[]",
    adapter_of: str = BASE,
    governs: str = "*",
) -> dict[str, str]:
    found = dict(FILES)
    found["inferenceservices/more.yaml"] = "".join(services) or "# none\n"
    found[TENANTS] = found[TENANTS].replace("pools: shared", f"pools: {isolation}")
    policy = f"fallback: {fallback}\n  placement: [{placement}]"
    found[POLICIES] = found[POLICIES].replace("fallback: []", policy)
    found[POLICIES] = found[POLICIES].replace('pools: ["*"]', f'pools: ["{governs}"]')
    models = "registry/models.yaml"
    found[models] = found[models].replace(f"base: {BASE}", f"base: {adapter_of}")
    return found


OWN = 'shoal.dev/dedicated-to: "acme"'
NONSENSE = {
    "an unknown tenant": (
        files(service(annotations='shoal.dev/dedicated-to: "acne"')),
        'found "acne", and there is no such Tenant',
    ),
    "no tenant at all": (
        files(service(annotations='shoal.dev/dedicated-to: " , "')),
        "allowed: names of tenants, separated by commas",
    ),
    "a tenant that shares": (files(service(annotations=OWN)), "the Tenant acme has isolation.pools: shared"),
    "dedicated without a pool": (files(service(), isolation="dedicated"), "no pool is dedicated to acme"),
    "a model without a pool of its": (
        files(service("other", model="other", annotations=OWN, uri="pvc://shoal-models/other"), isolation="dedicated"),
        '"smollm2-135m" is served by smollm2-135m, of which no pool is dedicated to acme',
    ),
    "a model that nobody serves": (files(service(model="nowhere")), "and no InferenceService has that shoal.dev/pool"),
    "a pool of a pool": (files(service(), service("third", model="spot")), "a pool of the model smollm2-135m; allowed"),
    "neither reserved nor spot": (
        files(service(annotations='shoal.dev/capacity: "cheap"')),
        'found "cheap"; allowed: reserved, spot',
    ),
    "another task": (files(service(labels=", shoal.dev/task: embed")), "is for generate, and this pool for embed"),
    "weights that nobody declares": (
        files(service(uri="pvc://shoal-models/fp8")),
        "declare them as a Model of type base",
    ),
    "a rule to nowhere": (files(service(), placement="{when: {}, to: gone}"), 'found "gone", and no InferenceService'),
    "a rule to the only pool": (files(placement="{when: {}, to: smollm2-135m}"), "the only pool of its model"),
    "a rule for an unknown tier": (
        files(service(), placement="{when: {tiers: [gold]}, to: spot}"),
        "there is no such QuotaPolicy",
    ),
    "a rule for an unknown tenant": (
        files(service(), placement="{when: {tenants: [x]}, to: spot}"),
        "there is no such Tenant",
    ),
    "a fallback to one of its pools": (
        files(service(), fallback="[{when: saturated, from: smollm2-135m, to: spot}]"),
        "which stands for all its pools",
    ),
    "an adapter of one of its pools": (files(service(), adapter_of="spot"), "which stands for all its pools"),
    "a policy that does not govern the model": (
        files(
            service(),
            service("other", model="other", uri="pvc://shoal-models/other"),
            governs="other",
            placement="{when: {}, to: spot}",
        ),
        "a pool of the model smollm2-135m, which this policy does not govern",
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_settings_without_effect_are_reported(case: str) -> None:
    given, message = NONSENSE[case]
    with pytest.raises(ConfigInvalid) as refused:
        load(given)
    (problem,) = refused.value.problems
    assert message in problem.message
    assert problem.place.line > 0


def test_valid_combinations_are_accepted() -> None:
    own = service("acmes", annotations=OWN)
    rules = (
        "{when: {classes: [batch], tiers: [enterprise], tenants: [acme]}, to: spot}, "
        "{when: {minPredictedTtft: 800ms}, to: spot}"
    )
    assert load(files(service(), own, isolation="preferred", placement=rules))
    assert load(files(own, isolation="dedicated"))
