"""All declared objects, grouped by kind once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from functions.api.declared import Declared
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.quota_policy import QuotaPolicy
from functions.api.kinds.rollout_policy import RolloutPolicy
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import Tenant

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Everything:
    tenants: list[Declared[Tenant]]
    models: list[Declared[Model]]
    services: list[Declared[InferenceService]]  # only those of a pool
    quotas: list[Declared[QuotaPolicy]]
    routing: list[Declared[RoutingPolicy]]
    admission: list[Declared[AdmissionPolicy]]
    rollouts: list[Declared[RolloutPolicy]]
    autoscaling: list[Declared[AutoscalingPolicy]]

    def pools(self) -> dict[str, Declared[InferenceService]]:
        """Return the services by the name of their pool; if two services have one pool, the first."""
        pools: dict[str, Declared[InferenceService]] = {}
        for service in self.services:
            pools.setdefault(service.value.pool or "", service)
        return pools


def sorted_out(objects: Iterable[Declared[AnyObject]]) -> Everything:
    by_kind: dict[type, list[Any]] = {}
    for declared in objects:
        by_kind.setdefault(type(declared.value), []).append(declared)

    def of(kind: type[Kind]) -> list[Declared[Kind]]:
        return by_kind.get(kind, [])

    return Everything(
        tenants=of(Tenant),
        models=of(Model),
        services=[service for service in of(InferenceService) if service.value.pool is not None],
        quotas=of(QuotaPolicy),
        routing=of(RoutingPolicy),
        admission=of(AdmissionPolicy),
        rollouts=of(RolloutPolicy),
        autoscaling=of(AutoscalingPolicy),
    )
