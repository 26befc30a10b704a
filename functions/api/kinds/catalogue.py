"""Which kinds exist: what the loader looks up for each document."""

from functions.api.kinds import inference_service
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.tenant import Tenant

AnyObject = Tenant | Model | InferenceService

# (apiVersion, kind) -> model
KINDS: dict[tuple[str, str], type[AnyObject]] = {
    (API_VERSION, "Tenant"): Tenant,
    (API_VERSION, "Model"): Model,
    (inference_service.API_VERSION, "InferenceService"): InferenceService,
}

# Named in the public contract, not read by this version: refused by name rather than ignored, so that nobody believes
# in a quota that nothing enforces.
LATER_KINDS = ("QuotaPolicy", "RoutingPolicy", "AdmissionPolicy", "RolloutPolicy", "AutoscalingPolicy")
