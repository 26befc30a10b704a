"""Hold back git's changes of a pool's own service while versions of its base move. Pure.

A changed storageUri would restart every replica that serves the old version. So the model (weights, and the
arguments, environment and resources changed with them) stays as it is live while the service has replicas. Its new
version gets a second service meanwhile. Once the own service has no replica left, the change is applied and starts
nothing.

The autoscaler's field manager owns the number of replicas meanwhile, with the same handover as under an
AutoscalingPolicy.
"""

from collections.abc import Collection
from dataclasses import replace

from functions.controller.kubernetes.objects import INFERENCE_SERVICE, Body, mapping_at, value_at
from functions.controller.kubernetes.render import Autoscaled, DesiredObject
from functions.controller.kubernetes.versions.second_service import uri_of


def is_held_back(wanted: DesiredObject, live: Body, versions: Collection[str], replicas: int) -> bool:
    """Return True if a change of a service's weights must wait, because replicas of a version would be lost. `versions`
    are the weights that the base has or had; `replicas` is how many the live service is asked for or has."""
    if wanted.ref.kind != INFERENCE_SERVICE.kind or not replicas:
        return False
    return uri_of(wanted.body) != uri_of(live) and uri_of(live) in versions


def with_live_model(wanted: DesiredObject, live: Body) -> DesiredObject:
    """Return the object with the live service's model instead of its own, limited to the keys that it declares."""
    predictor, there = wanted.body["spec"]["predictor"], mapping_at(live, "spec", "predictor", "model")
    model = {key: there[key] for key in mapping_at(predictor, "model") if key in there}
    return _with_predictor(wanted, {**predictor, "model": model})


def without_number(wanted: DesiredObject, total: int) -> DesiredObject:
    """Return the object without its minReplicas, which another field manager owns while versions move (`total` is its
    seed); unchanged if it is autoscaled or has no predictor."""
    if wanted.autoscaled is not None or value_at(wanted.body, "spec", "predictor") is None:
        return wanted
    predictor = {key: value for key, value in wanted.body["spec"]["predictor"].items() if key != "minReplicas"}
    return replace(_with_predictor(wanted, predictor), autoscaled=Autoscaled(total))


def _with_predictor(wanted: DesiredObject, predictor: Body) -> DesiredObject:
    return replace(wanted, body={**wanted.body, "spec": {**wanted.body["spec"], "predictor": predictor}})
