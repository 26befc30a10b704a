"""Requests of each tenant, drawn from a seed; the same for virtual and live runs."""

from collections.abc import Callable, Iterator
from random import Random

from loadtests.fairness.virtual import VirtualRequest

NOISY = "noisy"
QUIET = tuple(f"quiet-{number}" for number in range(9))


def chats(
    tenant: str, per_s: float, seconds: float, rng: Random, *, band: int = 0, tries: int = 0
) -> list[VirtualRequest]:
    """Return short turns: prompts of 200 tokens and answers of 74 in the median."""

    def one(at_s: float) -> VirtualRequest:
        prompt = int(min(2000, max(20, rng.lognormvariate(5.3, 0.6))))
        output = int(min(400, max(5, rng.lognormvariate(4.3, 0.6))))
        return VirtualRequest(at_s, tenant, prompt, output, band=band, tries_left=tries)

    return list(_poisson(per_s, seconds, rng, one))


def long_prompts(tenant: str, per_s: float, seconds: float, rng: Random, tokens: int = 32_000) -> list[VirtualRequest]:
    return list(_poisson(per_s, seconds, rng, lambda at_s: VirtualRequest(at_s, tenant, tokens, 20)))


def beside_the_nine(
    quiet_per_s: float, noisy_per_s: float, batch_per_s: float, seconds: float, seed: int
) -> list[VirtualRequest]:
    """Return requests of nine chat tenants, the noisy one and a batch one, each drawn independently of the others."""
    asked = [
        each
        for number, tenant in enumerate(QUIET)
        for each in chats(tenant, quiet_per_s / len(QUIET), seconds, Random(f"{seed} {number}"))
    ]
    if batch_per_s:
        asked += chats("patient", batch_per_s, seconds, Random(f"{seed} patient"), band=2)
    if noisy_per_s:
        asked += long_prompts(NOISY, noisy_per_s, seconds, Random(f"{seed} {NOISY}"))
    return sorted(asked, key=lambda each: each.at_s)


def _poisson(
    per_s: float, seconds: float, rng: Random, one: Callable[[float], VirtualRequest]
) -> Iterator[VirtualRequest]:
    at_s = rng.expovariate(per_s)
    while at_s < seconds:
        yield one(at_s)
        at_s += rng.expovariate(per_s)
