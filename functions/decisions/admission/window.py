"""Prefill window of a pool: the number of prompt tokens in prefill that keeps the time to first token short.

    window per replica = rate x target            rate: prompt tokens read per second, the best that was seen lately
    target             = max(SLO / 4, 3 x least time to first token)

By Little's law, tokens in prefill divided by the rate is the time that reading takes. An engine reads prompts in the
order of arrival, and a prompt in its queue cannot be overtaken. So what exceeds the window waits in the gateway.
Tenants that read less than their part may exceed the window once over (`queue`): in all, half of the SLO.
Worked example (test_worked_example_of_the_window): 20,000 tokens a second, an SLO of 500 ms, first tokens after 30 ms
at best: target max(0.125, 0.09) = 0.125 s, so 2,500 tokens per replica, and 20,000 for a pool of 8.

A prompt counts for at most the window of one replica: a longer one occupies one replica, not two. The rate is the one
that the agents measured, or the one seen here if that is higher. While the window is full, the rate seen here follows
its samples. The least time (over a minute or so) prevents that a slow engine looks full with one request, as in BBR.

The gateway does not see first tokens of answers that are not streamed. Such a prompt counts as read after the time that
reading takes at the agents' rates.
"""

from heapq import heappop, heappush
from math import inf

from functions.decisions.admission.ticket import Ticket

_SLO_RATIO = 0.25
_OVER_LEAST = 3.0
_FOLLOW = 0.3
_LEAST_OVER_S = 30.0  # one period; the least is taken over this period and the one before


class ReadingWindow:
    """Prefill window of one pool."""

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
        self._rate = 0.0  # tokens per second and replica, as seen here
        self._reported_rate = 0.0  # the same, as the agents measured it
        self._passed_tokens = 0
        self._since_s = self._least_since_s = now_s
        self._least_s = self._least_before_s = inf
        self._due: list[
            tuple[float, int, Ticket]
        ] = []  # requests without streaming, with the time from which they count as read

    def record_dispatch(self, ticket: Ticket, now_s: float) -> None:
        if not ticket.streams and self._reported_rate > 0.0:
            heappush(self._due, (now_s + ticket.prompt_tokens / self._reported_rate, ticket.number, ticket))

    def record_prefill_end(self, ticket: Ticket, took_s: float | None) -> None:
        """Count the tokens of a prompt that has been read, and its time `took_s` (None: unknown) if it is the shortest
        lately."""
        self._passed_tokens += ticket.prompt_tokens
        if took_s is not None and took_s < self._least_s:
            self._least_s = took_s

    def pop_due(self, now_s: float) -> Ticket | None:
        """Remove and return the next ticket whose prompt counts as read by now, or None."""
        return heappop(self._due)[2] if self._due and self._due[0][0] <= now_s else None

    def tick(self, now_s: float, replicas: int, reported_rate: float, slo_s: float, full: bool) -> None:
        """Update rate and window; call once a second. `reported_rate`: tokens per replica and second that the engines
        report, 0 if unknown. `full`: the window was full at some time since the last call."""
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
