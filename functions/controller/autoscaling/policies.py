"""Autoscaling policies of one revision."""

from dataclasses import dataclass

from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.loader import Loaded
from functions.api.snapshot import AdmissionEntry, AutoscalingEntry
from functions.controller.snapshot.compile_policies import admission_entry, autoscaling_entry, mapped


@dataclass(frozen=True, slots=True)
class Policies:
    revision: str = ""
    scaling: tuple[AutoscalingEntry, ...] = ()
    admission: tuple[AdmissionEntry, ...] = ()

    @classmethod
    def of(cls, revision: str, loaded: Loaded) -> "Policies":
        return cls(
            revision,
            tuple(mapped(policy, autoscaling_entry) for policy in loaded.of(AutoscalingPolicy)),
            tuple(mapped(policy, admission_entry) for policy in loaded.of(AdmissionPolicy)),
        )

    def cover(self, pool: str) -> bool:
        return any(entry.pool == pool for entry in self.scaling)
