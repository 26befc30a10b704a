"""Figures of a plan: their names, which direction is better, and from which difference on they matter.

Keys are (pool, band, figure); the band is empty for figures of a whole pool. ITL of a class is by answers: the
quantile of each answer's mean gap between tokens. The pool's `gap_p99_ms` is by tokens, so a long prompt that is read
meanwhile shows.

A prefill pool answers no requests and has no SLO figures, only its resource use; the pools that it serves have the
share of requests whose prompts it read. If a model has several pools, its classes are listed under the pool with its
name, whichever pool answered, and each pool also has its own answers (`here`). Hours and cost are then judged over
all pools of the model, so that work that moves between them is neither gain nor loss. `measure` computes the figures.
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

# Figures of a model with several pools: those of each pool, which are neither good nor bad alone, and the totals.
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
