"""Restart delay of a crashed process: doubling, capped, reset after a healthy while.

Worked example (test_doubles_then_caps): base 1 s, cap 60 s: 1, 2, 4, 8, 16, 32, 60, 60 … A process that stayed
healthy for 60 s starts again at 1.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    base_s: float = 1.0
    cap_s: float = 60.0
    forget_after_healthy_s: float = 60.0


def delay_s(consecutive_failures: int, policy: BackoffPolicy) -> float:
    """Return the seconds to wait after the n-th failure in a row (n >= 1): `base_s`, doubled with each failure, at most
    `cap_s`."""
    doublings = min(consecutive_failures - 1, 32)  # 2**32 is past any cap; the bound keeps the float finite
    return float(min(policy.cap_s, policy.base_s * 2**doublings))


def failures_after(consecutive_failures: int, healthy_s: float, policy: BackoffPolicy) -> int:
    """Return the number of failures in a row, including the end of a run that was healthy for `healthy_s`: 1 if that
    was long enough to forget earlier ones."""
    return 1 if healthy_s >= policy.forget_after_healthy_s else consecutive_failures + 1
