"""A tenant's own base model: which pool serves it; a pool that other tenants could use is rejected."""

import pytest

from functions.api.ids import ModelId, PoolName, pool_of_base
from functions.api.kinds.model import Model
from functions.api.problems import ConfigInvalid
from functions.api.snapshot_index import base_of
from tests.api.sources import FILES, load
from tests.api.test_pools import service
from tests.decisions.own_models import WIKI_POOL, wiki

MODEL = """\
---
apiVersion: shoal.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  id: {id}
  type: {type}
  versions: [{{name: v1, artifact: "s3://shoal-models/bases/{pool}/v1"}}]
  channels: {{stable: v1}}
"""
OWN = 'shoal.dev/dedicated-to: "acme"'
WEIGHTS = "shoal://acme.wiki@v1"


def model(id_: str = "acme/wiki", type_: str = "base", base: str = "") -> str:
    name = id_.replace("/", ".").replace("_", "-")
    text = MODEL.format(name=name, id=id_, type=type_, pool=pool_of_base(id_)[:60])
    return text.replace("  versions", f"  base: {base}\n  versions") if base else text


def own_pool(name: str = "acme.wiki", *, of: str = "acme.wiki", annotations: str = OWN) -> str:
    text = service(name, model=of, annotations=annotations, uri=WEIGHTS)
    return text.replace(f"  name: {name}\n", f"  name: {name.replace('.', '-')}\n")


def files(*documents: str) -> dict[str, str]:
    return {**FILES, "registry/more.yaml": "".join(documents)}


def test_a_tenants_own_model_needs_no_isolation_of_its_tenant() -> None:
    """acme shares all other models."""
    loaded = load(files(model(), own_pool(), model("acme/tone", "lora", "acme.wiki")))
    own = next(each.value for each in loaded.objects_of(Model) if each.value.spec.id == "acme/wiki")
    assert (own.pool, own.owner) == ("acme.wiki", "acme")


NONSENSE = {
    "everybody's pool": (files(model(), own_pool(annotations="")), "is required, and not there: the pool serves"),
    "another's pool": (
        files(model(), own_pool(annotations='shoal.dev/dedicated-to: "globex"')),
        'found "globex": the pool serves a model of acme\'s own',
    ),
    "a pool for two": (
        files(model(), own_pool(annotations='shoal.dev/dedicated-to: "acme,globex"')),
        "allowed: acme",
    ),
    "a second pool of it that is everybody's": (
        files(model(), own_pool(), own_pool("more", of="acme.wiki", annotations="")),
        "the pool serves a model of acme's own",
    ),
    "no pool": (files(model()), 'found "acme.wiki", and no InferenceService'),
    "a pool that serves another model": (
        files(model(), own_pool(of="smollm2-135m")),
        "its pool acme.wiki serves the model smollm2-135m",
    ),
    "a stranger's adapter": (
        files(model(), own_pool(), model("globex/tone", "lora", "acme.wiki")),
        "which serves a model of acme's own",
    ),
    "a tenant that is none": (files(model("acne/wiki"), own_pool("acne.wiki", of="acne.wiki")), "no such Tenant"),
    "a name too long for its pool": (files(model(f"acme/{'w' * 63}")), "up to 63 characters"),
    "two models of one pool": (files(model(), own_pool(), model("acme.wiki")), "is declared twice"),
}


@pytest.mark.parametrize(("found", "words"), NONSENSE.values(), ids=NONSENSE)
def test_settings_that_expose_the_pool_to_other_tenants_are_rejected(found: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load(found)
    assert any(words in problem.message for problem in caught.value.problems), caught.value.problems


def test_the_base_of_a_pool_is_found_by_its_name() -> None:
    """A dot may be part of a model's name; an adapter is not a base."""
    plain = wiki(ModelId("llama-3.1"), PoolName("llama-3.1"))
    own = wiki(ModelId("acme/wiki-2.5"), PoolName("acme.wiki-2.5"))
    models = {each.id: each for each in (plain, own, wiki(ModelId("acme/wiki"), WIKI_POOL, "lora"))}
    assert base_of(models, "llama-3.1") is plain
    assert base_of(models, "acme.wiki-2.5") is own
    assert base_of(models, "acme.wiki") is None and base_of(models, "llama-3") is None
