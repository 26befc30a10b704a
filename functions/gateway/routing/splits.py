"""Traffic splits of channels in rollout: which of its two versions a request gets, and what else is remembered of it.

Where it has one, `functions.decisions.rollout.split` places the request by a hash, unless its session is pinned
(`pins`). What was chosen holds for all of the request, retries too, with two exceptions: where no replica has the
candidate, a request whose session has not heard it goes to control; and so does any once the rollout was rolled back.

Where a model has no split, only one thing is done, for an adapter's request that belongs to a session: it is remembered
here that this version serves the session, so that a rollout that begins does not take it away in the middle.
Worked example (test_a_rollout_that_begins_takes_no_session_away): a session asks at 0 s; a rollout to 99 % begins; the
session asks again at 299 s, with 300 s for sessions: control.

Neighbours: `intake` asks, `exchange` obeys and reports, `evidence` counts.
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
    """One request's place in a rollout."""

    rollout: RolloutId
    stage: int
    model: ModelId
    group: Group
    control: ResolvedModel
    session: bytes | None = None  # a hash; None: the request belongs to no session
    held: bool = False  # the session was this group's before
    ttl_s: float = 0.0  # how long a pin holds
    fell_back: bool = False  # it was the candidate's, and no replica had that

    def header(self) -> bytes:
        """The `x-shoal-rollout` header's value."""
        note = b"; reason=candidate_unavailable" if self.fell_back else b""
        return b"%b; stage=%d; group=%b%b" % (self.rollout.encode(), self.stage, self.group.encode(), note)


class Sender(NamedTuple):
    """What a request is placed by."""

    tenant: TenantId
    session: str | None
    request_id: str


class Splits:
    """Owned by one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.pins = SessionPins(clock)
        self._clock = clock
        self._models: dict[RolloutId, ModelId] = {}  # what was split here; bounded by the snapshot's rollouts
        self._served: SessionTable[EngineName, float] = SessionTable(MAX_SERVED)  # until when it is the same session

    def place(self, asked: ResolvedModel, split: Split, sender: Sender, ttl_s: float) -> tuple[ResolvedModel, SplitUse]:
        """The version for one request of a channel in rollout; a pin holds for `ttl_s`."""
        tenant, session, request_id = sender
        self._models[split.rollout] = split.model
        hashed = session_hash(tenant, session) if session is not None else None
        pinned = self._group_of(asked, split, hashed) if hashed is not None else None
        choice = decisions.choose(split, tenant, session, request_id, pinned)
        if hashed is not None and (choice.pin or pinned is not None):
            self.pins.hold(split.rollout, hashed, choice.group, ttl_s)
        use = SplitUse(
            split.rollout, split.stage, split.model, choice.group, asked, hashed, held=pinned is not None, ttl_s=ttl_s
        )
        return (split.candidate if choice.group == "candidate" else asked), use

    def serves(self, model: ResolvedModel, tenant: TenantId, session: str, ttl_s: float) -> None:
        """A session's request for a model without a split."""
        if ttl_s > 0.0:
            self._served.put((model.engine_name, session_hash(tenant, session)), self._clock() + ttl_s)

    def _group_of(self, asked: ResolvedModel, split: Split, session: bytes) -> Group | None:
        """Where the session belongs: to what it was pinned to, or to control if that served it before the rollout."""
        pinned = self.pins.group_of(split.rollout, session)
        if pinned is None and self._clock() < (self._served.get((asked.engine_name, session)) or 0.0):
            return "control"
        return pinned

    def forget_ended(self, is_split: Callable[[RolloutId, ModelId], bool]) -> None:
        """A new snapshot: rollouts that it does not name have ended, and hold no session any more."""
        ended = {rollout for rollout, model in self._models.items() if not is_split(rollout, model)}
        self.pins.drop_rollouts(ended)
        for rollout in ended:
            del self._models[rollout]

    def expire(self) -> None:
        """Forget sessions that have been silent for too long; called a few times a second."""
        now_s = self._clock()
        self.pins.expire()
        self._served.expire(lambda until_s: until_s <= now_s)

    def answering(self, use: SplitUse) -> None:
        """The client has the beginning of an answer, or its end: the session belongs to what gave it.

        Of two requests at once that were answered by different groups, the first decides.
        """
        if use.session is not None and self._pinned(use) in (None, use.group):
            self._hold(use, use.group)

    def may_fall_back(self, use: SplitUse | None) -> bool:
        """Whether control may answer instead. A session that has heard the candidate goes back only by a rollback."""
        return use is not None and use.group == "candidate" and not use.held and self._pinned(use) != "candidate"

    def fall_back(self, use: SplitUse) -> SplitUse:
        """The candidate has no replica: this request, and what follows in its session, is control's."""
        self._hold(use, "control")
        return msgspec.structs.replace(use, group="control", fell_back=True)

    def _pinned(self, use: SplitUse) -> Group | None:
        return self.pins.group_of(use.rollout, use.session) if use.session is not None else None

    def _hold(self, use: SplitUse, group: Group) -> None:
        """A rollout that has ended since holds nobody: it may begin anew, under the same id."""
        if use.session is not None and use.rollout in self._models:
            self.pins.hold(use.rollout, use.session, group, use.ttl_s)
