"""Drills of outages: controller, bus, registry, object store, gateway.

On one machine the controller restarts a dead process within a second. To keep a process down like on a lost node, the
drill stops the controller (SIGSTOP). When the controller continues, it starts the process.
"""

from functions.cli.drill.declared import Drill, DrillLoad, Effect
from functions.cli.drill.stage import CONTROLLER, DrillStage

CONTROLLER_AWAY = Drill(
    name="controller-away",
    summary="The controller dies; the fleet keeps running, and a new controller takes over.",
    fault="the controller is killed (SIGKILL), and no other one is started",
    taken_back="a controller is started, as `shoal up` does",
    alert="ControllerAway",
    effect=Effect("no controller answers", "controller", "answers", lambda value: value == 0.0),
    inject=DrillStage.kill_controller,
    fires_within_s=90.0,
    clears_within_s=90.0,
)

BUS_AWAY = Drill(
    name="bus-away",
    summary="The bus hangs: gateways, registry and agents continue with their last state.",
    fault="Valkey is stopped (SIGSTOP): connections stay open and nothing is answered",
    taken_back="it goes on (SIGCONT)",
    alert="BusAway",
    effect=Effect("the gateway cannot reach the bus", "gateway", "shoal_bus_up", lambda value: value == 0.0),
    inject=lambda stage: stage.stop("bus"),
    hold_s=15.0,
)


def _registry_away(stage: DrillStage) -> None:
    stage.stop(CONTROLLER)
    stage.kill("registry")


REGISTRY_AWAY = Drill(
    name="registry-away",
    summary="The registry is down: gateways use the last snapshot.",
    fault="the registry is killed, and the controller is stopped so that it does not start it again",
    taken_back="the controller goes on and starts the registry",
    alert="RegistryAway",
    effect=Effect(
        "the gateway's snapshot gets old",
        "gateway",
        "shoal_snapshot_age_seconds",
        lambda value: value is not None and value > 45.0,
    ),
    inject=_registry_away,
    fires_within_s=120.0,
    clears_within_s=90.0,
)


def _store_away(stage: DrillStage) -> None:
    stage.stop(CONTROLLER)  # it would restart a hanging store after half a minute
    stage.stop("s3")


STORE_AWAY = Drill(
    name="store-away",
    summary="The object store hangs: loaded models are served, and no other one can be loaded.",
    fault="SeaweedFS is stopped (SIGSTOP)",
    taken_back="it goes on (SIGCONT)",
    alert="StoreAway",
    effect=Effect("the registry gets no answer", "registry", "shoal_store_up", lambda value: value == 0.0),
    inject=_store_away,
    hold_s=15.0,
    fires_within_s=120.0,
    clears_within_s=90.0,
)


def _gateway_away(stage: DrillStage) -> None:
    stage.stop(CONTROLLER)
    stage.kill("gateway")


GATEWAY_AWAY = Drill(
    name="gateway-away",
    summary="The only gateway dies: nothing is answered until it is started again.",
    fault="the gateway is killed, and the controller is stopped so that it does not start it again",
    taken_back="the controller goes on and starts a gateway",
    alert="GatewayAway",
    effect=Effect(
        "the gateway's page is gone", "gateway", "shoal_snapshot_epoch", lambda value: value is None or value == 0.0
    ),
    inject=_gateway_away,
    load=DrillLoad(requests_per_s=2.0),
    tolerates=frozenset({"failed", "refused", "broken_off"}),
    hold_s=10.0,
    recovers_within_s=90.0,
    unspooled_s=3.0,
)

DRILLS = (CONTROLLER_AWAY, BUS_AWAY, REGISTRY_AWAY, STORE_AWAY, GATEWAY_AWAY)
