"""Size of a pool as status and `shoal status -o json` show it."""

from dataclasses import asdict, dataclass
from typing import Any

from functions.controller.autoscaling.roster import Roster
from functions.controller.autoscaling.scaler import Wanted


@dataclass(frozen=True, slots=True)
class PoolSize:
    pool: str
    serving: int  # that are asked to serve
    warm: int  # that are asked to be warm
    desired: int | None  # what the autoscaler wants; None: the pool has no AutoscalingPolicy, or nothing is known yet
    cause: str
    reason: str
    since_unix_s: float | None
    rungs: tuple[str, ...]  # of the overload ladder, as the controller sees it
    held: str  # why it is not (yet) what is wanted

    @classmethod
    def of(cls, pool: str, roster: Roster, wanted: Wanted | None, operators: int | None, held: str) -> "PoolSize":
        if operators is not None:
            held = f"--replicas {operators} goes before the autoscaler"
        return cls(
            pool=pool,
            serving=roster.serving,
            warm=len(roster.standby),
            desired=wanted.replicas if wanted is not None else None,
            cause=wanted.cause if wanted is not None else "",
            reason=wanted.reason if wanted is not None else "",
            since_unix_s=wanted.since_unix_s if wanted is not None else None,
            rungs=wanted.rungs if wanted is not None else (),
            held=held,
        )

    def plain(self) -> dict[str, Any]:
        return asdict(self)
