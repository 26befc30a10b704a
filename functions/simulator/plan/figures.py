"""The figures of a plan: what they are called, which way is better, and from what difference on anybody would care.

Keys are (pool, band, figure); the band is empty for what belongs to a whole pool. ITL of a class is by answers: the
quantile of the mean gap between the tokens of each. The pool's own `gap_p99_ms` is by tokens: of a hundred gaps the
longest, in which a long prompt that is read meanwhile shows.

A prefill pool answers nothing, so that nothing is promised of it: it has what it takes, and the pools for which it
reads have the share of their requests whose prompts it did.

Where a model has several pools, its classes stand under the pool that bears its name, whoever answered, and each pool
has beside that what it answered itself (`here`). Hours and cost are then judged for all of the model's pools together:
work that moves from one to another is no gain of one and loss of the other.
Neighbours: `measure` fills them in from a run; `comparison` sets two sides against each other.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from functions.simulator.plan.comparison import Figure

IN_TIME = "attained_ratio"
_SHARE = 0.001  # a tenth of a percentage point


class Key(NamedTuple):
    pool: str
    band: str
    figure: str


_HOURS, _COST = Figure("accelerator-hours", "hours"), Figure("cost of 1 M tokens", "money")


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
        "wake_ratio": Figure("waited for a first replica", "ratio", matters_ratio=0.0, matters_from=_SHARE),
        "accelerator_hours": _HOURS,
        "cost_per_million": _COST,
        "prefilled_ratio": Figure("read by a prefill pool", "ratio", lower_is_better=None),
        "busy_ratio": Figure("busy", "ratio", lower_is_better=None),
    }
)
OF_PREFILL = MappingProxyType({name: OF_POOL[name] for name in ("hit_ratio", "accelerator_hours", "busy_ratio")})

# Of a model with several pools: what each of them answers, which alone is neither good nor bad, and all together.
OF_BAND_HERE = MappingProxyType(
    {
        "here_ratio": Figure("answered here", "ratio", lower_is_better=None),
        "here_ttft_p50_ms": Figure("TTFT p50, here", "ms", lower_is_better=None),
        "here_ttft_p99_ms": Figure("TTFT p99, here", "ms", lower_is_better=None),
    }
)
OF_ONE_OF_SEVERAL = MappingProxyType(
    {
        "accelerator_hours": replace(_HOURS, lower_is_better=None),
        "cost_per_million": replace(_COST, lower_is_better=None),
    }
)
OF_MODEL = MappingProxyType(
    {
        "model_accelerator_hours": replace(_HOURS, name="accelerator-hours, all pools"),
        "model_cost_per_million": replace(_COST, name="cost of 1 M tokens, all pools"),
    }
)
