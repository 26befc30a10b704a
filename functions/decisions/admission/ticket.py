"""One request as the waiting room sees it: what it asks for, and how far it has come.

    new -> waiting -> running -> over
      |_______|__________________^      refused, withdrawn, or too late

What it asks for is fixed; the rest of the fields are `admission`'s alone. One object for both, and a struct, because
one is made per request: two objects, or a frozen dataclass, would cost more than all the rest of the fast path.
"""

from typing import TYPE_CHECKING, Optional

import msgspec

from functions.api.ids import TenantId
from functions.api.snapshot import ServiceClass

if TYPE_CHECKING:
    from functions.decisions.admission.fair_queue import Flow

NEW, WAITING, RUNNING, OVER = range(4)
BANDS: tuple[ServiceClass, ...] = ("interactive", "near-real-time", "batch")  # in the order of their urgency
OUTPUT_WEIGHT = 2  # a token generated costs a step of the engine, one read is one of thousands in a step


def cost_tokens(uncached_prompt_tokens: int, output_tokens: int) -> int:
    """What a request takes out of a pool, in tokens read: the VTC paper's prices, 1 read and 2 generated."""
    return uncached_prompt_tokens + OUTPUT_WEIGHT * output_tokens


def uncounted_cost_tokens(prompt_tokens: int, delivered_tokens: int, *, at_work: bool, begun: bool) -> int | None:
    """The same of a request that ended before its engine had counted; None: as much as was expected.

        no engine had it, or all that had it failed    0                           that is not its tenant's doing
        it ended in its stream                         prompt + 2 x delivered      however short it was expected to be
        it ended before anything came                  None                        its prompt is being read for it

    `at_work`: an engine has it and has not failed. So whoever leaves early gains nothing by it. Worked example
    (test_what_a_request_costs_its_tenant_in_the_end): 1,000 tokens of prompt, 50 expected, gone after 300: 1,600, not
    the 1,100 that were charged when it went.
    """
    if begun:
        return cost_tokens(prompt_tokens, delivered_tokens)
    return None if at_work else 0


class Ticket(msgspec.Struct, eq=False):  # a ticket equals itself alone
    number: int  # in the order of arrival: breaks ties
    tenant: TenantId
    weight: float
    band: int  # index into BANDS
    prompt_tokens: int
    kv_tokens: int  # held at the end: prompt and expected output
    cost: int  # expected (`cost_tokens`)
    deadline_s: float  # the last moment at which it makes sense to dispatch it
    arrived_s: float
    streams: bool = True  # its first token is seen
    content: bytes = b""  # what it holds of memory while it waits, and is known by when it comes back

    # how far it has come
    state: int = NEW
    dispatched_s: float = 0.0
    reading_tokens: int = 0  # of the pool's prefill window, while its prompt is read
    flow: Optional["Flow"] = None
