"""Accounting check of a drill: the usage of complete answers, compared with the usage ledger and the trace store.

    ledger    must grow, for the drill's tenant, by at least the tokens of all complete answers, as the engine counted
              them. Other clients of the tenant may add more, so there is no upper limit
    traces    must have a row for each complete answer, by its x-request-id

A killed gateway loses the sums of its last second and its last rows, which are only in memory. Complete answers that
ended within `Drill.unspooled_s` of the fault are therefore not required.

`owed` is pure, the rest blocks. A source that cannot be read is reported, and does not fail the check.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from functions.cli.drill.stage import DrillStage
from functions.cli.drill.timeline import Accounts, RequestOutcome
from functions.cli.refused import CommandRefused
from functions.cli.registry_client import Registry
from functions.cli.trace_source import open_trace_store
from functions.telemetry.store.questions import MOST_ROWS, Search, search

ARRIVES_WITHIN_S = 45.0  # gateways report to the registry every ten seconds
ASK_EVERY_S = 1.0
_PAGES = 10


@dataclass(frozen=True, slots=True)
class Owed:
    tokens: int
    request_ids: frozenset[str]


def owed(outcomes: Sequence[RequestOutcome], injected_s: float, unspooled_s: float) -> Owed:
    """Return the usage of complete answers, without those that a killed gateway may not have stored."""
    sure = [
        each
        for each in outcomes
        if each.ending == "whole" and not (unspooled_s and -unspooled_s <= each.ended_s - injected_s <= unspooled_s)
    ]
    return Owed(sum(each.tokens or 0 for each in sure), frozenset(each.request_id for each in sure if each.request_id))


@dataclass(slots=True)
class DrillAccounting:
    """Usage ledger and traces of one tenant, counted from a baseline."""

    stage: DrillStage
    since_unix_s: int
    _zero: int = 0

    def record_baseline(self) -> None:
        self._zero = self._fetch_ledger_tokens()

    def settle(self, due: Owed) -> Accounts:
        """Return the totals once both sources have what is owed, or after ARRIVES_WITHIN_S."""
        deadline_s = time.monotonic() + ARRIVES_WITHIN_S
        while True:
            told, traced, why = self._fetch_totals(due)
            is_there = (told is None or told >= due.tokens) and (traced is None or traced >= len(due.request_ids))
            if is_there or time.monotonic() > deadline_s:
                return Accounts(due.tokens, told, len(due.request_ids), traced, why)
            time.sleep(ASK_EVERY_S)

    def _fetch_totals(self, due: Owed) -> tuple[int | None, int | None, str]:
        told = traced = None
        why = []
        try:
            told = self._fetch_ledger_tokens() - self._zero
        except CommandRefused as error:
            why.append(f"the ledger: {error}")
        try:
            traced = self._count_traced_requests(due.request_ids)
        except CommandRefused as error:
            why.append(f"the trace store: {error}")
        return told, traced, "; ".join(why)

    def _fetch_ledger_tokens(self) -> int:
        with Registry(self.stage.context) as registry:
            answer = registry.get("/v1/usage", tenant=self.stage.tenant, since=self.since_unix_s)
        total = answer["total"]
        return int(total["prompt_tokens"] + total["completion_tokens"]) if total is not None else 0

    def _count_traced_requests(self, request_ids: frozenset[str]) -> int:
        if not self.stage.entries("traces"):
            raise CommandRefused("this fleet has none")
        found: set[str] = set()
        until_s: float | None = None
        with open_trace_store(self.stage.context, None, "") as store:
            for _ in range(_PAGES):
                asked = Search(self.since_unix_s, until_s, tenant=self.stage.tenant, limit=MOST_ROWS)
                rows = search(store, asked)
                found |= {row.request_id for row in rows}
                if len(rows) < MOST_ROWS:
                    break
                until_s = min(row.ts for row in rows)
        return len(found & request_ids)
