"""Catalogue of kinds, in which the loader looks up each document."""

from functions.api.kinds import inference_service
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.quota_policy import QuotaPolicy
from functions.api.kinds.rollout_policy import RolloutPolicy
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import Tenant

OurObject = Tenant | Model | QuotaPolicy | RoutingPolicy | AdmissionPolicy | RolloutPolicy | AutoscalingPolicy
AnyObject = OurObject | InferenceService

# In reading order of the documentation.
OUR_KINDS: tuple[type[OurObject], ...] = (
    Tenant,
    Model,
    QuotaPolicy,
    RoutingPolicy,
    AdmissionPolicy,
    RolloutPolicy,
    AutoscalingPolicy,
)

# (apiVersion, kind) -> model
KINDS: dict[tuple[str, str], type[AnyObject]] = {
    **{(API_VERSION, kind.__name__): kind for kind in OUR_KINDS},
    (inference_service.API_VERSION, "InferenceService"): InferenceService,
}
