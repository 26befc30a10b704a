"""Comparison of the usage ledger with what clients received: prompt and completion tokens of each tenant.

Lower bound: the usage reported in whole answers, less those of a gateway killed within the second before its sums were
on disk. Upper bound: that usage, plus the whole prompt and answer of each request that ended otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.drills.chaos.load import SentRequest

SPOOLED_S = 2.0  # the gateway writes its sums every second; the machine is busy
_PER_WORD = 16  # tokens that a word of a prompt may have, with its marker of twelve characters
_TEMPLATE = 64


@dataclass(frozen=True, slots=True)
class Bill:
    tenant: str
    told: int  # from the ledger
    at_least: int
    at_most: int
    whole: int  # tokens of whole answers
    lost_with_gateways: int

    @property
    def holds(self) -> bool:
        return self.at_least <= self.told <= self.at_most


def bill(
    tenant: str, told: int, asked: Iterable[SentRequest], kills: Iterable[tuple[str, float]], besides: tuple[int, int]
) -> Bill:
    """Compute the bill. `kills` lists gateways with their times of death; `besides` bounds the usage outside
    `asked`.
    """
    deaths = list(kills)
    whole = lost = doubtful = 0
    for one in asked:
        if one.tenant != tenant:
            continue
        if one.end == "whole" and one.tokens is not None:
            tokens = sum(one.tokens)
            whole += tokens
            if any(gateway == one.gateway and -0.5 <= at_s - one.ended_s <= SPOOLED_S for gateway, at_s in deaths):
                lost += tokens
        elif not one.how.startswith(("429", "Connect")):
            doubtful += 2 * (one.words * _PER_WORD) + _TEMPLATE
    return Bill(tenant, told, whole - lost + besides[0], whole + doubtful + besides[1], whole, lost)
