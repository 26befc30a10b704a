"""Which group of a rollout a request belongs to: the new version's (candidate) or the old one's (control). Pure.

A request is placed by a hash of what it belongs to, so that every gateway places it alike without asking anybody:

    bucket = 8-byte blake2b of rollout|tenant|subject, as a big-endian number, modulo 10,000
    candidate, where bucket < percent x 100

The subject is the session where the request has one, else the request's own id; under `sticky: tenant` there is none,
so that whatever a tenant begins is placed alike. The rollout is part of the hash: nobody is always among the first.
Worked example (test_worked_example_of_the_prologue): in rollout ro-pxqrecv55wvliu7b acme's session `chat-0` has bucket
3,944. That is below 50 x 100 but not below 10 x 100: control at 10 %, and candidate at 50 % but for its pin.

Laws: as the percentage grows nobody leaves the candidate (test_a_larger_share_never_takes_a_session_back); a session
that began on control stays there, pinned, until the rollout ends, since a conversation must not change its voice
mid-way.
Neighbours: `catalogue` says which split a model has; the gateway keeps the pins.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

from functions.api.ids import RolloutId, TenantId
from functions.decisions.catalogue import Split

Group = Literal["candidate", "control"]

BUCKETS = 10_000  # a hundredth of a percent each


@dataclass(frozen=True, slots=True)
class Choice:
    group: Group
    pin: bool  # remember it for this session: a later, larger share would place it elsewhere


def choose(split: Split, tenant: TenantId, session: str | None, request_id: str, pinned: Group | None) -> Choice:
    """The group for one request. `pinned` is what the session's first request got, where somebody remembers.

    A request without a session is placed anew each time, and never pinned. A tenant that is placed whole moves with all
    that it begins from then on; its sessions under way stay where they are, as everybody's.
    """
    if pinned is not None:
        return Choice(pinned, pin=True)
    own = session if session is not None else request_id
    group = _group(split, bucket_of(split.rollout, tenant, own if split.sticky == "session" else ""))
    return Choice(group, pin=session is not None and group == "control")


def bucket_of(rollout: RolloutId, tenant: TenantId, subject: str) -> int:
    """0 to 9,999; the same everywhere. Neither ids nor tenants contain the separator; the subject comes last."""
    digest = hashlib.blake2b(f"{rollout}|{tenant}|{subject}".encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % BUCKETS


def _group(split: Split, bucket: int) -> Group:
    return "candidate" if bucket < split.percent * (BUCKETS // 100) else "control"
