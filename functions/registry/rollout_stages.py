"""Where rollouts are, for `/metrics`: what is under way, bounded, and nothing where the database does not tell.

Whoever reaches the registry may read its metrics, and a model's name is its tenant's: only who shows the internal token
gets them.
"""

import asyncio
from collections.abc import Callable, Mapping

from fastapi import Request

from functions.decisions.rollout.report import stages_of
from functions.registry.errors import ApiError
from functions.registry.sql import rollouts
from functions.registry.sql.failures import DatabaseUnavailable
from functions.registry.truth import Truth

ROLLOUTS_MAX = 1000  # the youngest
WAIT_S = 3.0  # a scrape has ten

_ACTIVE = rollouts.Filter(active=True)


async def active_stages(truth: Truth, request: Request, check: Callable[[Request], None]) -> Mapping[str, int]:
    """By model; empty for strangers, and where it cannot be read soon."""
    try:
        check(request)
        async with asyncio.timeout(WAIT_S):
            found = await truth.database.run(
                lambda: truth.database.read(lambda c: rollouts.page(c, _ACTIVE, None, ROLLOUTS_MAX))
            )
    except (ApiError, DatabaseUnavailable, TimeoutError):
        return {}
    return stages_of(stored.rollout for stored in found)
