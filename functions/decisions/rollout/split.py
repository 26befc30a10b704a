"""Traffic split of a rollout: the new version's group (candidate) or the old one's (control). Pure functions.

A hash assigns each request to a group, so every gateway assigns it alike without messages:

    bucket = 8-byte blake2b of rollout|tenant|subject, as a big-endian number, modulo 10,000
    candidate if bucket < percent x 100

The subject is the request's session, else the request's own id; under `sticky: tenant` it is empty, so all of a
tenant's requests are assigned alike. The rollout is part of the hash, so no tenant is always among the first. Worked
example (test_worked_example_of_the_prologue): in rollout ro-pxqrecv55wvliu7b acme's session `chat-0` has bucket
3,944. That is below 50 x 100 but not below 10 x 100: control at 10 %, and candidate at 50 % without its pin.

Laws: a growing percentage moves no request away from the candidate (test_larger_share_never_moves_a_session_back).
A session that began on control is pinned there until the rollout ends, since a conversation must not change its
model. Neighbours: `catalogue` has a model's split; the gateway stores the pins.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

from functions.api.ids import RolloutId, TenantId
from functions.decisions.catalogue import Split

Group = Literal["candidate", "control"]

BUCKETS = 10_000  # one hundredth of a percent each


@dataclass(frozen=True, slots=True)
class Choice:
    group: Group
    pin: bool  # store it for this session: a later, larger share would assign it differently


def choose(split: Split, tenant: TenantId, session: str | None, request_id: str, pinned: Group | None) -> Choice:
    """Return the group of one request, and if it is to be stored for its session. `pinned` is the group of the
    session's first request, if it is stored.

    A request without a session is assigned each time and never pinned. Under `sticky: tenant` new sessions move with
    the tenant, and running ones stay pinned.
    """
    if pinned is not None:
        return Choice(pinned, pin=True)
    own = session if session is not None else request_id
    group = _group(split, bucket_of(split.rollout, tenant, own if split.sticky == "session" else ""))
    return Choice(group, pin=session is not None and group == "control")


def bucket_of(rollout: RolloutId, tenant: TenantId, subject: str) -> int:
    """Return the subject's bucket in this rollout, 0 to 9,999, the same in every gateway. Ids and tenants contain no
    separator; the subject comes last."""
    digest = hashlib.blake2b(f"{rollout}|{tenant}|{subject}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % BUCKETS


def _group(split: Split, bucket: int) -> Group:
    return "candidate" if bucket < split.percent * (BUCKETS // 100) else "control"
