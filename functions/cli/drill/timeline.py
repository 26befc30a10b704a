"""Timeline of one drill: requests, alerts, gauges and health, in seconds since the drill began. Values only.

An ending says how far the platform kept its word:

    whole       200, the text complete, its own, from the model that was asked for
    refused     told so before any text: 429 or 503 with a code, and when to come again
    broken_off  text, then an error event: the caller knows that it is not complete
    failed      any other error: 5xx, a connection that breaks, a stream that ends without a word
    mixed       another's text, or another model's
"""

from dataclasses import dataclass
from typing import Literal

Ending = Literal["whole", "refused", "broken_off", "failed", "mixed"]
AlertState = Literal["inactive", "pending", "firing"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request."""

    traffic: str  # which of the drill's loads
    began_s: float
    ended_s: float
    ending: Ending
    first_s: float | None = None  # when its first text came
    status: int = 0  # 0: no answer
    detail: str = ""
    request_id: str = ""
    tokens: int | None = None  # prompt's and completion's, as the answer's end says

    @property
    def ttft_s(self) -> float | None:
        return self.first_s - self.began_s if self.first_s is not None else None


@dataclass(frozen=True, slots=True)
class AlertChange:
    at_s: float
    name: str
    state: AlertState


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the fleet. `effect` is the gauge that the drill watches; None: it is not there."""

    at_s: float
    is_well: bool
    shows_effect: bool
    effect: float | None = None
    missing: str = ""  # what it is not well for
    is_mended: bool = False  # the platform has done what it does about it, and all is well again
    is_held: bool = False  # it has reasons not to do it yet


@dataclass(frozen=True, slots=True)
class Accounts:
    """What whole answers cost by their own word, and what ledger and traces have of it; None: it could not be asked."""

    owed_tokens: int
    ledger_tokens: int | None
    owed_rows: int
    trace_rows: int | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    injected_s: float
    taken_back_s: float
    ended_s: float
    outcomes: tuple[Outcome, ...] = ()
    alerts: tuple[AlertChange, ...] = ()
    looks: tuple[Look, ...] = ()
    shown: tuple[tuple[float, bool], ...] = ()  # whether the effect showed, as Prometheus has it: closer than looks
    sees_alerts: bool = True  # False: there is no Prometheus
    accounts: Accounts | None = None  # None: nobody asked


@dataclass(frozen=True, slots=True)
class Second:
    """What of the requests fell into one span of time, for a picture."""

    at_s: float
    offered: int
    whole: int
    refused: int
    failed: int  # broken off, failed and mixed
    ttft_p99_s: float | None


def seconds(outcomes: tuple[Outcome, ...], ended_s: float, span_s: float = 1.0) -> list[Second]:
    """By when they ended; `offered` and first tokens by when they began."""
    count = int(ended_s / span_s) + 1
    begun: list[list[Outcome]] = [[] for _ in range(count)]
    ended: list[list[Outcome]] = [[] for _ in range(count)]
    for each in outcomes:
        begun[min(count - 1, int(each.began_s / span_s))].append(each)
        ended[min(count - 1, int(each.ended_s / span_s))].append(each)
    made = []
    for index in range(count):
        endings = [each.ending for each in ended[index]]
        whole, refused = endings.count("whole"), endings.count("refused")
        first = sorted(each.ttft_s for each in begun[index] if each.ttft_s is not None)
        made.append(
            Second(
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
    """The nearest rank: the least value that `share` of all do not pass; None of nothing."""
    return ascending[max(0, -(-int(share * 1000 * len(ascending)) // 1000) - 1)] if ascending else None
