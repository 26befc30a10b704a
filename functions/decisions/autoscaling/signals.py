"""Signals of a pool over the last period: all that an autoscaling decision reads. Pure.

`None` is "not known" and never zero: whoever decides takes it for a reason to leave things as they are.

    utilization_ratio = work that arrived / work that the ready replicas could have done, both in engine seconds

It is linear in the load, unlike the share of time in which an engine makes steps, which is near 1 as soon as there is
one long answer under way. Where an engine's step takes `step` seconds with nothing beside it and a token takes `itl`
on average, the rest of each step is work that somebody brought:

    utilization_ratio = 1 - step / itl                  and idle time counts as 0

Worked example (test_worked_example_of_utilization): a step alone takes 10 ms. Tokens come 40 ms apart while there is
something to do, which is for nine tenths of the time: 0.9 x (1 - 10 / 40) = 0.675.

An engine of a prefill pool has no stream that it could hold up: there the share of time in which it reads is the work
that arrived. What such a pool is asked for are the prompts that it reads for another one, or should
(`routing.disaggregation`): they arrive, they wait at its replicas, and where the other one reads them after all they
count as answered by another pool.

Not all that is refused says that a pool is too small: an adapter that cannot be loaded, a tenant's own bound or batch
that gives way do not. `is_overflow` knows which do.

Neighbours: `decide` decides by them, `forecast` learns from them; the simulator's pools and the controller's
collector fill them in.
"""

from dataclasses import dataclass

# Labels of shoal_shed_total that mean too little capacity.
_WANT_OF_CAPACITY = frozenset({"saturated", "queue_full", "queue_timeout", "low_tier", "told_to_wait"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSignals:
    at_s: float  # the end of the period that they are of
    ready: int  # replicas that take new requests
    starting: int = 0  # on their way to being ready
    warm: int = 0  # loaded, without traffic
    draining: int = 0  # end what they have, take nothing new
    arrivals_per_s: float | None = None  # requests, whether they were taken in or not
    arriving_tokens_per_s: float | None = None  # prompt tokens to be computed, and tokens expected to be made
    deferrable_tokens_per_s: float | None = None  # of those, the batch band's, which may wait for minutes
    queue_seconds: float | None = None  # how long the next request would wait; at the gateways, but for a prefill pool
    queued_tokens: float | None = None
    foreground_queued_tokens: float | None = None  # of those, the ones that are not batch, which waits by design
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None
    kv_usage_ratio: float | None = None  # of the fullest replica
    utilization_ratio: float | None = None  # see the prologue
    shed_per_s: float | None = None  # refused, for whatever reason
    overflow_per_s: float | None = None  # of those, see `is_overflow`
    degraded_per_s: float | None = None
    waking: int = 0  # requests that wait at gateways for a replica of a pool that has none
    open_requests: int = 0  # that gateways have sent to the pool, or keep for it; of pools that may go to zero

    @property
    def committed(self) -> int:
        """Replicas that serve, or will without anybody asking for them again."""
        return self.ready + self.starting


def is_overflow(reason: str, *, is_batch: bool) -> bool:
    """Whether a refusal says that the pool is too small. `reason` is a label of shoal_shed_total."""
    return not is_batch and reason in _WANT_OF_CAPACITY


def step_utilization(step_s: float, itl_mean_s: float | None, busy_ratio: float) -> float | None:
    """`busy_ratio`: the share of time in which the engine had something to do. None: nothing was measured."""
    if itl_mean_s is None:
        return 0.0 if busy_ratio == 0.0 else None
    if itl_mean_s <= 0.0:
        return None
    return min(1.0, max(0.0, busy_ratio)) * min(1.0, max(0.0, 1.0 - step_s / itl_mean_s))
