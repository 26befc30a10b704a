"""Names that may occur once: objects of a kind, key ids in the installation, pools."""

from collections.abc import Iterable, Iterator

from functions.api.consistency.everything import Everything
from functions.api.declared import Declared
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import POOL_LABEL, InferenceService
from functions.api.kinds.tenant import Tenant
from functions.api.problems import Problem, shown


def problems(objects: Iterable[Declared[AnyObject]], everything: Everything) -> Iterator[Problem]:
    yield from _objects(objects)
    yield from _key_ids(everything.tenants)
    yield from _pools(everything.services)


def _objects(objects: Iterable[Declared[AnyObject]]) -> Iterator[Problem]:
    first: dict[tuple[str, str], Declared[AnyObject]] = {}
    for declared in objects:
        value = declared.value
        name = (value.kind, value.metadata.name)
        known = first.setdefault(name, declared)
        if known is not declared:
            message = f"{name[0]} {shown(name[1])} is declared twice; first at {known.source}"
            yield declared.problem(["metadata", "name"], message)


def _key_ids(tenants: Iterable[Declared[Tenant]]) -> Iterator[Problem]:
    """A key names its id only, and the id finds the tenant."""
    first: dict[str, tuple[Declared[Tenant], int]] = {}
    for tenant in tenants:
        for index, key in enumerate(tenant.value.spec.keys):
            known, known_index = first.setdefault(key.id, (tenant, index))
            if known is tenant and known_index == index:
                continue
            place = known.document.locate(("spec", "keys", known_index, "id"))
            user = f"tenant {known.value.metadata.name} at {place.file}:{place.line}"
            yield tenant.problem(("spec", "keys", index, "id"), f"the key id {shown(key.id)} is already used by {user}")


def _pools(services: Iterable[Declared[InferenceService]]) -> Iterator[Problem]:
    first: dict[str, Declared[InferenceService]] = {}
    for service in services:
        pool = service.value.pool or ""
        known = first.setdefault(pool, service)
        if known is not service:
            message = f"the pool {shown(pool)} is already served by {known.source}"
            yield service.problem(["metadata", "labels", POOL_LABEL], message)
