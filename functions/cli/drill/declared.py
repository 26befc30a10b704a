"""Definition of a drill: its fault, load, effect, alert and time limits.

A drill declares and injects; the runner undoes everything. Limits apply to a fleet on one machine whose alerts have
short windows (`functions.telemetry.alerting.scaled`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from functions.cli.drill.timeline import Ending

if TYPE_CHECKING:
    from functions.cli.drill.stage import DrillStage

STEADY = "steady"  # name of the traffic that runs before, during and after the fault

Page = Literal["gateway", "registry", "agents", "controller"]


@dataclass(frozen=True, slots=True)
class DrillLoad:
    """Requests that arrive at a fixed rate, whether earlier ones have ended or not."""

    requests_per_s: float = 4.0
    words: int = 16  # per prompt, about two tokens each; a simulated engine echoes the prompt
    max_tokens: int = 64
    traffic: str = STEADY
    models: tuple[str, ...] = ()  # used in turn; empty: the base model
    shared_words: int = 0  # number of words that all prompts share
    key_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # limits of a separate key
    another_may_answer: bool = False  # True for a cascade; the text must still match the request


@dataclass(frozen=True, slots=True)
class Effect:
    """A gauge or counter that shows the failure. `is_there` decides by its value; None: no page or no such series."""

    words: str
    page: Page
    metric: str
    is_there: Callable[[float | None], bool]
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fold: Literal["sum", "max", "min"] = "max"
    grows: bool = False  # use the growth since the load began; it does not show the end of the fault

    @property
    def query(self) -> str | None:
        """Prometheus query for the same value; None if Prometheus does not scrape the page."""
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return f"{self.fold}({self.metric}{{{labels}}})" if self.page != "controller" else None


@dataclass(frozen=True, slots=True)
class Mend:
    """The platform's own repair while the fault lasts. The drill removes the fault only afterwards."""

    words: str
    done: Effect  # counter that grows when the repair begins
    under_way: Effect
    held: Effect  # the repair is due but held back
    within_s: float


@dataclass(frozen=True, slots=True)
class Drill:
    name: str  # failure mode; also in the alert's label, the dashboard's row and the runbook's name
    summary: str
    fault: str
    taken_back: str
    alert: str
    effect: Effect
    inject: Callable[["DrillStage"], None]
    load: DrillLoad = DrillLoad()
    spike: tuple[DrillLoad, ...] = ()  # sent only during the fault; may itself be the fault
    prepare: Callable[["DrillStage"], None] | None = None  # called before the load, for example to slow the fleet down
    tolerates: frozenset[Ending] = frozenset()  # allowed endings of steady traffic until recovery, besides "whole"
    spike_tolerates: frozenset[Ending] = frozenset({"refused"})
    simulated_only: bool = False
    min_replicas: int = 1
    hold_s: float = 5.0  # minimum duration of the fault
    fires_within_s: float = 60.0  # after the fault
    clears_within_s: float = 90.0  # after the fault was removed
    recovers_within_s: float = 60.0  # after the fault was removed
    heals_itself: bool = False  # the platform recovers without a removal of the fault
    mend: Mend | None = None
    unspooled_s: float = 0.0  # usage of so long before the fault is lost with the killed gateway


def needs(drill: Drill, *, engine: str, replicas: int) -> str:
    """Return why the fleet cannot run the drill; empty if it can."""
    if drill.simulated_only and engine != "sim":
        return "its fault needs simulated engines: `shoal up --engine sim`"
    if replicas < drill.min_replicas:
        return f"it needs {drill.min_replicas} replicas, and {replicas} are ready"
    return ""
