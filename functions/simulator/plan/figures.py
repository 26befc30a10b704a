"""The figures of a plan: what they are called, which way is better, and from what difference on anybody would care.

Keys are (pool, band, figure); the band is empty for what belongs to a whole pool. ITL of a class is by answers: the
quantile of the mean gap between the tokens of each. The pool's own `gap_p99_ms` is by tokens: of a hundred gaps the
longest, in which a long prompt that is read meanwhile shows.
Neighbours: `measure` fills them in from a run; `comparison` sets two sides against each other.
"""

from types import MappingProxyType
from typing import NamedTuple

from functions.simulator.plan.comparison import Figure

IN_TIME = "attained_ratio"
_SHARE = 0.001  # a tenth of a percentage point


class Key(NamedTuple):
    pool: str
    band: str
    figure: str


OF_BAND = MappingProxyType(
    {
        IN_TIME: Figure("in time", "ratio", lower_is_better=False, matters_ratio=0.0, matters_from=_SHARE),
        "ttft_p50_ms": Figure("TTFT p50", "ms"),
        "ttft_p99_ms": Figure("TTFT p99", "ms"),
        "itl_p50_ms": Figure("ITL p50", "ms"),
        "itl_p99_ms": Figure("ITL p99", "ms"),
        "shed_ratio": Figure("shed", "ratio", matters_ratio=0.0, matters_from=_SHARE),
        "degraded_ratio": Figure("degraded", "ratio", matters_ratio=0.0, matters_from=_SHARE),
        "lost_ratio": Figure("failed", "ratio", matters_ratio=0.0, matters_from=_SHARE),
        "limited_ratio": Figure("over limits", "ratio", matters_ratio=0.0, matters_from=_SHARE),
    }
)
OF_POOL = MappingProxyType(
    {
        "gap_p99_ms": Figure("longest gaps, p99", "ms"),
        "hit_ratio": Figure("cache hits", "ratio", lower_is_better=False, matters_ratio=0.0, matters_from=0.005),
        "cold_ratio": Figure("waited for an adapter", "ratio", matters_ratio=0.0, matters_from=_SHARE),
        "accelerator_hours": Figure("accelerator-hours", "hours"),
        "cost_per_million": Figure("cost of 1 M tokens", "money"),
        "busy_ratio": Figure("busy", "ratio", lower_is_better=None),
    }
)
