"""What a drill is: its fault, the load beside it, the effect it looks for, the alert, and what may take how long.

Law: a drill declares and injects; who plays it takes everything back. Bounds hold for a fleet on one machine with short
windows of its alerts (`functions.telemetry.alerting.scaled`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from functions.cli.drill.timeline import Ending

if TYPE_CHECKING:
    from functions.cli.drill.stage import Stage

STEADY = "steady"  # the traffic that is there before, during and after the fault

Page = Literal["gateway", "registry", "agents", "controller"]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that come at a rate, whatever became of those before."""

    requests_per_s: float = 4.0
    words: int = 16  # of a prompt, each some two tokens; a simulated engine says it back
    max_tokens: int = 64
    traffic: str = STEADY
    models: tuple[str, ...] = ()  # asked in turn; none: the base
    shared_words: int = 0  # of these words, so many are the same in all prompts
    key_limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # then a key of its own
    another_may_answer: bool = False  # a cascade's policy says so; the text is still to be the request's own


@dataclass(frozen=True, slots=True)
class Effect:
    """A gauge or counter that shows the failure: `is_there` of what it says (None: no page, or no such series)."""

    words: str
    page: Page
    metric: str
    is_there: Callable[[float | None], bool]
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fold: Literal["sum", "max", "min"] = "max"
    grows: bool = False  # what it has grown by since the load began; it says nothing of the fault's end

    @property
    def query(self) -> str | None:
        """The same, asked of Prometheus; None where it scrapes no such page."""
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return f"{self.fold}({self.metric}{{{labels}}})" if self.page != "controller" else None


@dataclass(frozen=True, slots=True)
class Mend:
    """What the platform does about the failure while it lasts; the drill keeps the fault until then."""

    words: str
    done: Effect  # a counter that grows when it begins to
    under_way: Effect
    held: Effect  # it would, and has a reason not to yet
    within_s: float


@dataclass(frozen=True, slots=True)
class Drill:
    name: str  # the failure mode: of the alert's label, the dashboard's row and the runbook
    summary: str
    fault: str
    taken_back: str
    alert: str
    effect: Effect
    inject: Callable[["Stage"], None]
    load: Load = Load()
    spike: tuple[Load, ...] = ()  # offered only while the fault is in force; it may be the fault
    prepare: Callable[["Stage"], None] | None = None  # before the load: what makes the fleet small enough
    tolerates: frozenset[Ending] = frozenset()  # of the steady traffic, besides whole, until it has recovered
    spike_tolerates: frozenset[Ending] = frozenset({"refused"})
    simulated_only: bool = False
    min_replicas: int = 1
    hold_s: float = 5.0  # the fault is in force at least so long
    fires_within_s: float = 60.0  # after the fault
    clears_within_s: float = 90.0  # after it was taken back
    recovers_within_s: float = 60.0  # after it was taken back
    heals_itself: bool = False  # taking it back is nothing: the platform mends it
    mend: Mend | None = None
    unspooled_s: float = 0.0  # of so long before the fault, a gateway that it kills has told nobody


def needs(drill: Drill, *, engine: str, replicas: int) -> str:
    """Why the fleet cannot play it; empty: it can."""
    if drill.simulated_only and engine != "sim":
        return "its fault is one of the simulated engine's own: `shoal up --engine sim`"
    if replicas < drill.min_replicas:
        return f"it takes {drill.min_replicas} replicas, and {replicas} are ready"
    return ""
