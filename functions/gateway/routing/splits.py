"""Traffic splits of channels in rollout: the version of each request, and which sessions belong to which version.

If a channel is split, `functions.decisions.rollout.split` places the request by a hash, unless its session is pinned
(`pins`). The choice holds for the whole request including retries, with two exceptions. If no replica has the
candidate, a request whose session has had no candidate answer goes to control. After a rollback every request goes to
control.

If a model has no split, the module only remembers which version serves an adapter's session. A new rollout then does
not change the version in the middle of a session. Worked example
(test_starting_rollout_keeps_running_sessions_on_control): a session sends a request at 0 s, and a rollout to 99 %
begins. With a session time of 300 s, its request at 299 s goes to control.

`intake` requests the version, `exchange` uses it and reports, and `evidence` counts.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from functions.api.ids import EngineName, ModelId, RolloutId, TenantId
from functions.decisions.catalogue import ResolvedModel, Split
from functions.decisions.rollout import split as decisions
from functions.decisions.rollout.split import Group
from functions.decisions.routing.sessions import SessionTable, session_hash
from functions.gateway.routing.pins import SessionPins

MAX_SERVED = 100_000  # sessions of adapters without a split; about 30 MB


class SplitUse(msgspec.Struct, frozen=True):
    """Placement of one request in a rollout."""

    rollout: RolloutId
    stage: int
    model: ModelId
    group: Group
    control: ResolvedModel
    session: bytes | None = None  # session hash; None: no session
    held: bool = False  # the session belonged to this group before
    ttl_s: float = 0.0  # session time of a pin
    fell_back: bool = False  # moved from the candidate to control because no replica had the candidate

    def header(self) -> bytes:
        """Return the value of `x-shoal-rollout`: rollout, stage, group, and the reason if control stepped in."""
        note = b"; reason=candidate_unavailable" if self.fell_back else b""
        return b"%b; stage=%d; group=%b%b" % (self.rollout.encode(), self.stage, self.group.encode(), note)


class Sender(NamedTuple):
    """Properties that place a request in a split."""

    tenant: TenantId
    session: str | None
    request_id: str


class Splits:
    """Placement of requests and sessions in the splits of rollouts. Owned by one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.pins = SessionPins(clock)
        self._clock = clock
        self._models: dict[RolloutId, ModelId] = {}  # models with a rollout; bounded by the snapshot's rollouts
        self._served: SessionTable[EngineName, float] = SessionTable(MAX_SERVED)  # until when the session lasts

    def place(self, asked: ResolvedModel, split: Split, sender: Sender, ttl_s: float) -> tuple[ResolvedModel, SplitUse]:
        """Return the version for one request of a channel in rollout, and its use of the split.

        A session that has a pin, or that the split pins, is pinned to its group for another `ttl_s`.
        """
        tenant, session, request_id = sender
        self._models[split.rollout] = split.model
        hashed = session_hash(tenant, session) if session is not None else None
        pinned = self._group_of(asked, split, hashed) if hashed is not None else None
        choice = decisions.choose(split, tenant, session, request_id, pinned)
        if hashed is not None and (choice.pin or pinned is not None):
            self.pins.pin(split.rollout, hashed, choice.group, ttl_s)
        use = SplitUse(
            split.rollout, split.stage, split.model, choice.group, asked, hashed, held=pinned is not None, ttl_s=ttl_s
        )
        return (split.candidate if choice.group == "candidate" else asked), use

    def remember_served(self, model: ResolvedModel, tenant: TenantId, session: str, ttl_s: float) -> None:
        """Remember for `ttl_s` that the model served this session without a split; 0 remembers nothing."""
        if ttl_s > 0.0:
            self._served.put((model.engine_name, session_hash(tenant, session)), self._clock() + ttl_s)

    def _group_of(self, asked: ResolvedModel, split: Split, session: bytes) -> Group | None:
        """Return the group that the session is pinned to, else control if that served it before, else None."""
        pinned = self.pins.group_of(split.rollout, session)
        if pinned is None and self._clock() < (self._served.get((asked.engine_name, session)) or 0.0):
            return "control"
        return pinned

    def forget_ended(self, is_split: Callable[[RolloutId, ModelId], bool]) -> None:
        """Forget the rollouts for which `is_split` is False, as they have ended, and their pins."""
        ended = {rollout for rollout, model in self._models.items() if not is_split(rollout, model)}
        self.pins.drop_rollouts(ended)
        for rollout in ended:
            del self._models[rollout]

    def expire(self) -> None:
        """Forget expired pins, and sessions served without a split that expired. Called a few times a second."""
        now_s = self._clock()
        self.pins.expire()
        self._served.expire(lambda until_s: until_s <= now_s)

    def answering(self, use: SplitUse) -> None:
        """Pin the session to the group whose answer the client receives.

        If two concurrent requests of a session were answered by different groups, the first one wins.
        """
        if use.session is not None and self._pinned(use) in (None, use.group):
            self._hold(use, use.group)

    def may_fall_back(self, use: SplitUse | None) -> bool:
        """Return True if control may answer instead. A session with a candidate answer moves back only by a
        rollback."""
        return use is not None and use.group == "candidate" and not use.held and self._pinned(use) != "candidate"

    def fall_back(self, use: SplitUse) -> SplitUse:
        """Pin the session to control, because no replica has the candidate; return the changed use of the split."""
        self._hold(use, "control")
        return msgspec.structs.replace(use, group="control", fell_back=True)

    def _pinned(self, use: SplitUse) -> Group | None:
        return self.pins.group_of(use.rollout, use.session) if use.session is not None else None

    def _hold(self, use: SplitUse, group: Group) -> None:
        """Pin the session, if there is one, unless the rollout has ended: it may start again with the same id."""
        if use.session is not None and use.rollout in self._models:
            self.pins.pin(use.rollout, use.session, group, use.ttl_s)
