"""Timeline of one drill: requests, alerts, gauges and health, in seconds since the drill began. Values only.

Endings of a request:

    whole       200 with the complete text for this prompt, from the requested model
    refused     429 or 503 with a code before any text
    broken_off  text, then an error event that tells the client that the answer is incomplete
    failed      any other error: 5xx, a broken connection, a stream that ends without [DONE] or an error event
    mixed       text for another prompt, or from another model
"""

from dataclasses import dataclass
from typing import Literal

Ending = Literal["whole", "refused", "broken_off", "failed", "mixed"]
AlertState = Literal["inactive", "pending", "firing"]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One request."""

    traffic: str  # name of the drill's load
    began_s: float
    ended_s: float
    ending: Ending
    first_s: float | None = None  # time of the first text
    status: int = 0  # 0: no answer
    detail: str = ""
    request_id: str = ""
    tokens: int | None = None  # prompt and completion tokens, from the answer's usage

    @property
    def ttft_s(self) -> float | None:
        return self.first_s - self.began_s if self.first_s is not None else None


@dataclass(frozen=True, slots=True)
class AlertChange:
    at_s: float
    name: str
    state: AlertState


@dataclass(frozen=True, slots=True)
class FleetObservation:
    """One poll of the fleet. `effect` is the value of the watched gauge; None: no such series."""

    at_s: float
    is_well: bool
    shows_effect: bool
    effect: float | None = None
    missing: str = ""  # missing parts of the fleet
    is_mended: bool = False  # the platform's repair is complete and the fleet is well
    is_held: bool = False  # the platform holds its repair back


@dataclass(frozen=True, slots=True)
class Accounts:
    """Usage that whole answers reported, and what ledger and traces contain; None: the source was not readable."""

    owed_tokens: int
    ledger_tokens: int | None
    owed_rows: int
    trace_rows: int | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class DrillTimeline:
    injected_s: float
    taken_back_s: float
    ended_s: float
    outcomes: tuple[RequestOutcome, ...] = ()
    alerts: tuple[AlertChange, ...] = ()
    looks: tuple[FleetObservation, ...] = ()
    shown: tuple[tuple[float, bool], ...] = ()  # (time, effect shows) from Prometheus, more exact than polls
    sees_alerts: bool = True  # False: no Prometheus runs
    accounts: Accounts | None = None  # None means not checked


@dataclass(frozen=True, slots=True)
class DrillSecond:
    """Requests within one span of time, for a picture."""

    at_s: float
    offered: int
    whole: int
    refused: int
    failed: int  # broken off, failed and mixed
    ttft_p99_s: float | None


def seconds(outcomes: tuple[RequestOutcome, ...], ended_s: float, span_s: float = 1.0) -> list[DrillSecond]:
    """Count requests per span by their end; `offered` and first tokens by their beginning."""
    count = int(ended_s / span_s) + 1
    begun: list[list[RequestOutcome]] = [[] for _ in range(count)]
    ended: list[list[RequestOutcome]] = [[] for _ in range(count)]
    for each in outcomes:
        begun[min(count - 1, int(each.began_s / span_s))].append(each)
        ended[min(count - 1, int(each.ended_s / span_s))].append(each)
    made = []
    for index in range(count):
        endings = [each.ending for each in ended[index]]
        whole, refused = endings.count("whole"), endings.count("refused")
        first = sorted(each.ttft_s for each in begun[index] if each.ttft_s is not None)
        made.append(
            DrillSecond(
                at_s=index * span_s,
                offered=len(begun[index]),
                whole=whole,
                refused=refused,
                failed=len(endings) - whole - refused,
                ttft_p99_s=percentile(first, 0.99),
            )
        )
    return made


def percentile(ascending: list[float], share: float) -> float | None:
    """Return the nearest-rank percentile: the least value that `share` of all do not exceed; None for no values."""
    return ascending[max(0, -(-int(share * 1000 * len(ascending)) // 1000) - 1)] if ascending else None
