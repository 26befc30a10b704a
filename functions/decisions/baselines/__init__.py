"""Other routers' published algorithms, for comparison with `functions.decisions.routing.choice` and for nothing else.

`round_robin` and `least_loaded` are what everybody has; `cache_aware` is SGLang's model gateway. Each is given the same
candidates as shoal's own router (ready, not tried, not ejected, holders of the adapter), which is more than some of
them know by themselves, and picks one (`compared`).
"""

from typing import Literal

from functions.decisions.baselines.cache_aware import CacheAware
from functions.decisions.baselines.least_loaded import LeastLoaded
from functions.decisions.baselines.protocol import Baseline
from functions.decisions.baselines.round_robin import RoundRobin

RouterName = Literal["shoal", "round-robin", "least-loaded", "cache-aware"]  # what a gateway may be told to use


def baseline(name: RouterName) -> Baseline | None:
    """A fresh one, which remembers nothing; None for shoal's own router."""
    match name:
        case "round-robin":
            return RoundRobin()
        case "least-loaded":
            return LeastLoaded()
        case "cache-aware":
            return CacheAware()
        case _:
            return None
