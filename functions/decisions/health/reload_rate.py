"""Reload rate of an engine: time to fetch a token's KV blocks from host memory, declared or measured.

    measured  load seconds gained x 1000 / tokens found in host memory / accelerators that copy side by side
    declared  KV bytes per token / bytes per second                  (the pool's annotations), until one is measured
    assumed   ASSUMED_MS, if neither is known

An engine's load seconds are summed over its accelerators, which copy their parts of a block in parallel. Each sample
moves the estimate with a weight that grows with its tokens: 2,000 tokens replace half of it.

Worked example (test_worked_example_from_the_prologue): 128 KiB a token at 25 GB/s are declared: 0.0052 ms. Then 2,000
tokens are found in host memory, with 40 ms of loading over two accelerators: 0.01 ms measured, 0.0076 estimated.

An engine without host memory for blocks (`has_host`) reloads nothing: 0.
"""

from dataclasses import dataclass, replace

ASSUMED_MS = 0.0105  # a token of 128 KiB at 12.5 GB/s, half of what PCIe 4 gives
_HALF_TOKENS = 2000
MIN_MS, MAX_MS = 1e-6, 1000.0


@dataclass(frozen=True, slots=True)
class ReloadCounters:
    """Sums since the engine started."""

    load_s: float
    tokens: float  # prompt tokens found in host memory


@dataclass(frozen=True, slots=True)
class DeclaredReload:
    """Reload rate that the pool's service declares; 0: not declared."""

    kv_bytes_per_token: int = 0
    bytes_per_s: float = 0.0
    accelerators: int = 1

    @property
    def ms_per_token(self) -> float | None:
        if not self.kv_bytes_per_token or not self.bytes_per_s:
            return None
        return _bounded(self.kv_bytes_per_token / self.bytes_per_s * 1000)


@dataclass(frozen=True, slots=True)
class ReloadRate:
    """Estimate of one engine. Updated by `observe` about once a second."""

    has_host: bool = False  # the engine keeps blocks in host memory
    learnt_ms: float | None = None
    last: ReloadCounters | None = None

    def ms_per_token(self, declared: DeclaredReload) -> float:
        if not self.has_host:
            return 0.0
        return self.learnt_ms or declared.ms_per_token or ASSUMED_MS


def observe(rate: ReloadRate, counters: ReloadCounters, declared: DeclaredReload, *, has_host: bool) -> ReloadRate:
    """Return the estimate of an engine's reload time per token after another sample. Sums that fell mean a restarted
    engine and change nothing."""
    last, seen = rate.last, replace(rate, has_host=has_host, last=counters)
    if last is None or counters.tokens <= last.tokens or counters.load_s < last.load_s:
        return seen
    tokens = counters.tokens - last.tokens
    measured_ms = (counters.load_s - last.load_s) * 1000 / tokens / max(1, declared.accelerators)
    if measured_ms <= 0.0:
        return replace(seen, last=last)  # the seconds of these tokens have not been counted yet
    weight = 1.0 - 0.5 ** (tokens / _HALF_TOKENS)
    former_ms = rate.learnt_ms or declared.ms_per_token or measured_ms
    return replace(seen, learnt_ms=_bounded(former_ms + weight * (measured_ms - former_ms)))


def _bounded(ms: float) -> float:
    return min(MAX_MS, max(MIN_MS, ms))
