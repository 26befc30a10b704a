"""Signals of a pool over the last period: all that an autoscaling decision reads. Pure functions.

`None` means unknown and never zero: a decision then changes nothing.

    utilization_ratio = work that arrived / work that the ready replicas could have done, both in engine seconds

It is linear in the load. The share of time in which an engine makes steps is not: it is near 1 with a single long
answer. An engine's step takes `step` seconds without other work, and a token takes `itl` on average; the rest of each
step is work for requests:

    utilization_ratio = 1 - step / itl                  and idle time counts as 0

Worked example (test_worked_example_of_utilization): a step alone takes 10 ms. The engine is busy for nine tenths of
the time, with 40 ms between tokens: 0.9 x (1 - 10 / 40) = 0.675.

An engine of a prefill pool has no streams, so its utilization is the share of time in which it reads prompts.
Arrivals of a prefill pool are the prompts that it reads, or should read, for another pool (`routing.disaggregation`).
They wait at its replicas, and count as answered by another pool if the decode pool reads them itself.

Not every rejection means that a pool is too small: an adapter that cannot be loaded, a tenant's own limit, or batch
that yields do not. `is_overflow` tells them apart.

Neighbours: `decide` and `forecast` read the signals; the simulator's pools and the controller's collector fill them
in.
"""

from dataclasses import dataclass

# Labels of shoal_shed_total that mean too little capacity.
_WANT_OF_CAPACITY = frozenset({"saturated", "queue_full", "queue_timeout", "low_tier", "told_to_wait"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSignals:
    at_s: float  # end of the period
    ready: int  # replicas that accept new requests
    starting: int = 0  # on their way to being ready
    warm: int = 0  # loaded, without traffic
    draining: int = 0  # finishing their requests, accepting no new ones
    arrivals_per_s: float | None = None  # requests, accepted or not
    arriving_tokens_per_s: float | None = None  # prompt tokens to compute, and expected output tokens
    deferrable_tokens_per_s: float | None = None  # part of them in the batch band, which may wait for minutes
    queue_seconds: float | None = None  # wait of the next request at the gateways; of a prefill pool at its replicas
    queued_tokens: float | None = None
    foreground_queued_tokens: float | None = None  # without batch, which waits by design
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None
    kv_usage_ratio: float | None = None  # usage of the fullest replica
    utilization_ratio: float | None = None  # see the prologue
    shed_per_s: float | None = None  # rejected, for any reason
    overflow_per_s: float | None = None  # part of shed_per_s for which `is_overflow` holds
    degraded_per_s: float | None = None
    waking: int = 0  # requests waiting at gateways for a pool without replicas
    open_requests: int = 0  # sent to the pool or held for it by gateways; only for pools that may go to zero

    @property
    def committed(self) -> int:
        """Number of replicas that serve or are starting, without warm ones."""
        return self.ready + self.starting


def is_overflow(reason: str, *, is_batch: bool) -> bool:
    """Return True if a rejection means that the pool is too small. `reason` is a label of shoal_shed_total."""
    return not is_batch and reason in _WANT_OF_CAPACITY


def step_utilization(step_s: float, itl_mean_s: float | None, busy_ratio: float) -> float | None:
    """Return the utilization from 0 to 1: the share of time with work in the engine, times (1 - step time without load
    / mean inter-token time). None if nothing was measured; 0 for an idle engine."""
    if itl_mean_s is None:
        return 0.0 if busy_ratio == 0.0 else None
    if itl_mean_s <= 0.0:
        return None
    return min(1.0, max(0.0, busy_ratio)) * min(1.0, max(0.0, 1.0 - step_s / itl_mean_s))
