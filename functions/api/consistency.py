"""What several objects say together: names that occur twice, and references to what is not there.

Each check is one function over all declared objects; it adds problems and never stops another check.
"""

from collections.abc import Iterable, Iterator, Sequence

from functions.api.declared import Declared, of_kind
from functions.api.ids import is_name
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import CONTEXT_ALLOWED, MAX_MODEL_LEN, POOL_LABEL, InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.tenant import Tenant
from functions.api.problems import Problem, near_miss, shown


def problems(objects: Sequence[Declared[AnyObject]], *, complete: bool) -> list[Problem]:
    """Everything that is wrong between the objects.

    `complete` says that every document could be read. Where one could not, a reference to nothing is no finding: what
    it names may stand in the very document that is broken.
    """
    tenants = of_kind(objects, Tenant)
    models = of_kind(objects, Model)
    services = [service for service in of_kind(objects, InferenceService) if service.value.pool is not None]
    found = [*_duplicate_objects(objects), *_duplicate_key_ids(tenants), *_pools(services), *_models(models)]
    return [*found, *_references(models, tenants, services)] if complete else found


def _duplicate_objects(objects: Iterable[Declared[AnyObject]]) -> Iterator[Problem]:
    first: dict[tuple[str, str], Declared[AnyObject]] = {}
    for declared in objects:
        name = (declared.value.kind, declared.value.metadata.name)
        known = first.setdefault(name, declared)
        if known is not declared:
            message = f"{name[0]} {shown(name[1])} is declared twice; first at {known.source}"
            yield declared.problem(["metadata", "name"], message)


def _duplicate_key_ids(tenants: Iterable[Declared[Tenant]]) -> Iterator[Problem]:
    """Key ids are unique in the installation: a key names its id only, and the id finds the tenant."""
    first: dict[str, str] = {}
    for tenant in tenants:
        for index, key in enumerate(tenant.value.spec.keys):
            path = ("spec", "keys", index, "id")
            if key.id in first:
                yield tenant.problem(path, f"the key id {shown(key.id)} is already used by {first[key.id]}")
            else:
                place = tenant.document.locate(path)
                first[key.id] = f"tenant {tenant.value.metadata.name} at {place.file}:{place.line}"


def _pools(services: Iterable[Declared[InferenceService]]) -> Iterator[Problem]:
    first: dict[str, Declared[InferenceService]] = {}
    label = ["metadata", "labels", POOL_LABEL]
    args = ["spec", "predictor", "model", "args"]
    for service in services:
        pool = service.value.pool or ""
        if not is_name(pool):
            yield service.problem(label, f"found {shown(pool)}; allowed: a name of 1 to 63 of a-z 0-9 . _ -")
        if first.setdefault(pool, service) is not service:
            yield service.problem(label, f"the pool {shown(pool)} is already served by {first[pool].source}")
        if service.value.spec.predictor.model is None:
            yield service.problem(["spec", "predictor", "model"], "is required, and not there: a pool runs a model")
        elif service.value.context_window_tokens is None:
            message = f"{MAX_MODEL_LEN} is required, with {CONTEXT_ALLOWED}: the gateway must know the context window"
            yield service.problem(args, message)
        yield from _replica_bounds(service)


def _replica_bounds(service: Declared[InferenceService]) -> Iterator[Problem]:
    predictor = service.value.spec.predictor
    most = predictor.max_replicas
    if most and most < predictor.min_replicas:
        message = f"found {most}; allowed: at least minReplicas, {predictor.min_replicas}"
        yield service.problem(["spec", "predictor", "maxReplicas"], message)


def _models(models: Iterable[Declared[Model]]) -> Iterator[Problem]:
    for model in models:
        yield from _name_agrees(model)
        yield from _versions_and_channels(model)
        yield from (_lora(model) if model.value.spec.type == "lora" else _base(model))


def _name_agrees(model: Declared[Model]) -> Iterator[Problem]:
    id_, name = model.value.spec.id, model.value.metadata.name
    expected = id_.replace("/", ".").replace("_", "-")
    if name != expected:
        message = f"found {shown(id_)}; its metadata.name would be {shown(expected)}, but is {shown(name)}"
        yield model.problem(["spec", "id"], message)


def _versions_and_channels(model: Declared[Model]) -> Iterator[Problem]:
    spec = model.value.spec
    if not spec.versions:
        yield model.problem(["spec", "versions"], "found an empty list; allowed: at least one version")
    names: list[str] = []
    for index, version in enumerate(spec.versions):
        if version.name in names:
            yield model.problem(["spec", "versions", index, "name"], f"the version {shown(version.name)} occurs twice")
        names.append(version.name)
    for channel, target in spec.channels.items():
        if target not in names:
            message = f"found {shown(target)}; allowed: {', '.join(names) or 'no version is declared'}"
            yield model.problem(["spec", "channels", channel], message + near_miss(target, names))


def _lora(model: Declared[Model]) -> Iterator[Problem]:
    spec = model.value.spec
    if "/" not in spec.id:
        yield model.problem(["spec", "id"], f"found {shown(spec.id)}; allowed for a lora: tenant/name")
    if spec.base is None:
        yield model.problem(["spec", "base"], "is required for a lora: the pool whose base model it adapts")


def _base(model: Declared[Model]) -> Iterator[Problem]:
    spec = model.value.spec
    if "/" in spec.id:
        yield model.problem(["spec", "id"], f"found {shown(spec.id)}; allowed for a base: the pool's name, without /")
    if spec.base not in {None, spec.id}:
        yield model.problem(["spec", "base"], f"found {shown(spec.base)}; a base adapts nothing: leave this out")
    if len(spec.versions) > 1:
        yield model.problem(["spec", "versions"], "a base has one version: its pool's replicas hold the same weights")


def _references(
    models: Iterable[Declared[Model]],
    tenants: Iterable[Declared[Tenant]],
    services: Iterable[Declared[InferenceService]],
) -> Iterator[Problem]:
    """Tenants and pools that models name, and that nobody declares."""
    tenant_names = sorted({tenant.value.metadata.name for tenant in tenants})
    pools = {service.value.pool or "": service.value for service in services}
    for model in models:
        spec = model.value.spec
        tenant, slash, _ = spec.id.partition("/")
        if slash and tenant not in tenant_names:
            message = f"begins with {shown(tenant)}, and there is no such Tenant"
            yield model.problem(["spec", "id"], message + near_miss(tenant, tenant_names))
        pool, key = (spec.base, "base") if spec.type == "lora" else (spec.id, "id")
        if pool is not None and pool not in pools:
            message = f"found {shown(pool)}, and no InferenceService has that {POOL_LABEL}"
            yield model.problem(["spec", key], message + near_miss(pool, sorted(pools)))
        elif pool is not None and spec.type == "base":
            yield from _same_weights(model, pools[pool])


def _same_weights(model: Declared[Model], service: InferenceService) -> Iterator[Problem]:
    served = service.spec.predictor.model
    for index, version in enumerate(model.value.spec.versions):
        if served is not None and served.storage_uri not in {None, version.artifact}:
            message = f"found {shown(version.artifact)}, but the pool's storageUri is {shown(served.storage_uri)}"
            yield model.problem(["spec", "versions", index, "artifact"], message)
