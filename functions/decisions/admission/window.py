"""How many prompt tokens a pool may be reading at once: so many as keep the time to first token short, and no more.

    window per replica = rate x target            rate: prompt tokens read per second, the best that was seen lately
    target             = max(SLO / 4, 3 x least time to first token)

By Little's law, what is being read divided by the rate is how long reading takes. An engine reads prompts in the order
in which they came; what waits there cannot be overtaken any more, so what does not fit waits here. The window may be
passed once over by tenants that read less than their part (`admission`): together, half of the promised time.
Worked example (test_worked_example_of_the_window): 20,000 tokens a second, 500 ms promised, first tokens after 30 ms at
best: target max(0.125, 0.09) = 0.125 s, so 2,500 tokens per replica, and 20,000 for a pool of 8.

A prompt counts for at most the window of one replica: a longer one keeps one replica busy, not two. The rate is what
the agents measured, or what passed here where that was more; while the window is full it follows what passes. The least
time (over a minute or so) keeps a slow engine from looking full with one request: BBR's reason for the same.

First tokens of answers that are not streamed are not seen; such a prompt counts as read after the time that reading
takes by the agents' rates.
"""

from heapq import heappop, heappush
from math import inf

from functions.decisions.admission.ticket import Ticket

_SLO_RATIO = 0.25
_OVER_LEAST = 3.0
_FOLLOW = 0.3
_LEAST_OVER_S = 30.0  # the least of this time and of the one before


class ReadingWindow:
    """Of one pool."""

    __slots__ = (
        "_due",
        "_least_before_s",
        "_least_s",
        "_least_since_s",
        "_passed_tokens",
        "_rate",
        "_reported_rate",
        "_since_s",
        "per_replica_tokens",
    )

    def __init__(self, now_s: float) -> None:
        self.per_replica_tokens = inf
        self._rate = 0.0  # tokens per second and replica, as passed here
        self._reported_rate = 0.0  # the same, as the agents measured it
        self._passed_tokens = 0
        self._since_s = self._least_since_s = now_s
        self._least_s = self._least_before_s = inf
        self._due: list[tuple[float, int, Ticket]] = []  # not streamed, until they count as read

    def entered(self, ticket: Ticket, now_s: float) -> None:
        if not ticket.streams and self._reported_rate > 0.0:
            heappush(self._due, (now_s + ticket.prompt_tokens / self._reported_rate, ticket.number, ticket))

    def read(self, ticket: Ticket, took_s: float | None) -> None:
        """Its prompt has been read; `took_s` where that is known."""
        self._passed_tokens += ticket.prompt_tokens
        if took_s is not None and took_s < self._least_s:
            self._least_s = took_s

    def due(self, now_s: float) -> Ticket | None:
        """The next of those that count as read by now."""
        return heappop(self._due)[2] if self._due and self._due[0][0] <= now_s else None

    def tick(self, now_s: float, replicas: int, reported_rate: float, slo_s: float, full: bool) -> None:
        """Once a second. `full`: the window was, at some moment since the last time."""
        elapsed_s = now_s - self._since_s
        if elapsed_s > 0.0:
            sample = self._passed_tokens / elapsed_s / replicas
            self._passed_tokens, self._since_s = 0, now_s
            if sample > self._rate:
                self._rate = sample
            elif full:
                self._rate += _FOLLOW * (sample - self._rate)
        self._reported_rate = reported_rate
        if now_s - self._least_since_s >= _LEAST_OVER_S:
            self._least_before_s, self._least_s, self._least_since_s = self._least_s, inf, now_s
        self.per_replica_tokens = max(self._rate, reported_rate) * self._target_s(slo_s) or inf

    def _target_s(self, slo_s: float) -> float:
        least_s = min(self._least_s, self._least_before_s)
        return max(_SLO_RATIO * slo_s, _OVER_LEAST * least_s if least_s < inf else 0.0)
