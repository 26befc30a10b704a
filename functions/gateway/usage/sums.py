"""Sums of usage at this gateway: requests, tokens and costs of each tenant and model in each hour.

    count      once a request, with the tokens that its accounts were charged (`settlement` calls it)
    lost_*     work of engines without a result: attempts that failed, or lost against another one
    pop_rows   everything since the last call, for the spool

A request belongs to the hour in which it ended and to the model that answered it. The tokens of a cascade's small
model belong to that model, without a request. Costs use the price in the pool's snapshot at the end of the request,
so that a new price changes no earlier bill.

The number of rows is limited. If more models are called in a second, further sums go to a row of their tenant without
a model's name. Beyond twice the limit, requests are counted as lost (`lost_requests_total`).

Neighbours: `functions.fleet.usage_report` has the rows; `spool` stores them, `delivery` sends them.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from functions.decisions.catalogue import ResolvedModel
from functions.decisions.quota.dimensions import gpu_seconds
from functions.decisions.routing.choice import Prediction
from functions.fleet.usage_report import REPORT_ROWS, SECONDS_PER_HOUR, UsageKey, UsageRow, merge
from functions.gateway.quota.accounts import Charged
from functions.gateway.request.answers import Usage
from functions.gateway.request.request import Admitted, CascadeSpend, Ended, PrefillSpend

ROWS = REPORT_ROWS // 2  # 2 MB; emptied once a second
_LEFT = 499
_FAILED_FROM = 500


class LostAttempt(Protocol):
    """An attempt without a result for the client."""

    prediction: Prediction
    connected_s: float

    @property
    def admitted(self) -> Admitted: ...

    @property
    def usage(self) -> Usage | None: ...

    @property
    def tokens(self) -> int: ...


class UsageSums:
    """Sums of usage by hour, tenant, model, version, pool and class. Owned by one event loop."""

    def __init__(self, wall_clock: Callable[[], float], rows: int = ROWS) -> None:
        self.lost_requests_total = 0
        self._wall_clock = wall_clock
        self._rows_max = rows
        self._rows: dict[UsageKey, UsageRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def requests(self) -> int:
        """Number of requests in memory only, which are lost if this process is killed now."""
        return sum(row.requests for row in list(self._rows.values()))  # also called by another thread

    def count(self, ended: Ended, charged: Charged | None) -> None:
        """Add one ended request, with its cost and the `charged` tokens, to its row. On the hot path.

        A small model's and a prefill's cost are added to rows of their own.
        """
        admitted, spent, beside = ended.admitted, ended.spent, ended.cascade_spend
        model = admitted.model
        hour = int(self._wall_clock()) // SECONDS_PER_HOUR
        key = (hour, admitted.caller.tenant, model.id, model.version, model.pool, admitted.service_class)
        row = self._rows.get(key) or self._new_row(key)
        row.requests += 1
        if ended.status >= _FAILED_FROM:
            row.failed += 1
        elif ended.status == _LEFT:
            row.left += 1
        kv_token_s, accelerator_s = spent
        if beside is not None:
            kv_token_s -= beside.spent.kv_token_seconds
            accelerator_s -= beside.spent.gpu_seconds
            self._count_beside(beside, key)
        if ended.prefill is not None:
            kv_token_s -= ended.prefill.spent.kv_token_seconds
            accelerator_s -= ended.prefill.spent.gpu_seconds
            self._count_prefill(ended.prefill, key)
        if charged is not None:
            row.prompt_tokens += charged[0]
            row.cached_tokens += charged[1]
            row.completion_tokens += charged[2]
        row.kv_token_seconds += max(0.0, kv_token_s)
        row.accelerator_seconds += max(0.0, accelerator_s)
        row.cost += max(0.0, accelerator_s) * model.price_per_accelerator_hour / SECONDS_PER_HOUR
        if not ended.worked and ended.usage is None and ended.attempts > len(ended.failures):
            self._count_abandoned_work(ended)

    def count_lost_attempt(self, attempt: LostAttempt, now_s: float) -> None:
        """Count the engine's work (prompt and tokens seen) for an attempt that failed or lost against a faster one.

        Nothing is counted if it was never connected.
        """
        admitted = attempt.admitted
        if attempt.connected_s and admitted.route.is_read:
            self._count_lost_attempt(
                admitted, attempt.prediction, now_s - attempt.connected_s, attempt.usage, attempt.tokens
            )

    def count_lost_answer(self, spend: CascadeSpend, admitted: Admitted) -> None:
        """Count as lost the first answer of a small model that answers twice but is paid for once."""
        row, usage = self._row_of(admitted, spend.model), spend.usage
        row.lost_attempts += 1
        row.lost_prompt_tokens += max(0, usage.prompt_tokens - usage.cached_tokens)
        row.lost_completion_tokens += usage.completion_tokens
        _add_lost(row, spend.model, spend.spent.gpu_seconds)

    def pop_rows(self) -> list[UsageRow]:
        """Remove and return the oldest rows, as many as fit a report (REPORT_ROWS); nearly always all."""
        keys = list(islice(self._rows, REPORT_ROWS))
        return [self._rows.pop(key) for key in keys]

    def restore_rows(self, rows: Iterable[UsageRow]) -> None:
        """Add rows back to the sums that could not be written to disk."""
        merge(self._rows, rows)

    def _new_row(self, key: UsageKey) -> UsageRow:
        if len(self._rows) >= self._rows_max:
            hour, tenant, _, _, pool, service_class = key
            key = (hour, tenant, "", "", pool, service_class)
        row = self._rows.get(key) or UsageRow(*key)  # type: ignore[arg-type]  # a key is a row's beginning
        if key not in self._rows and len(self._rows) >= 2 * self._rows_max:
            self.lost_requests_total += 1
        else:
            self._rows[key] = row
        return row

    def _row_of(self, admitted: Admitted, model: ResolvedModel) -> UsageRow:
        hour = int(self._wall_clock()) // SECONDS_PER_HOUR
        key = (hour, admitted.caller.tenant, model.id, model.version, model.pool, admitted.service_class)
        return self._rows.get(key) or self._new_row(key)

    def _count_beside(self, beside: CascadeSpend, of_answer: UsageKey) -> None:
        model, usage = beside.model, beside.usage
        key = (of_answer[0], of_answer[1], model.id, model.version, model.pool, of_answer[5])
        row = self._rows.get(key) or self._new_row(key)
        row.prompt_tokens += usage.prompt_tokens
        row.cached_tokens += min(usage.cached_tokens, usage.prompt_tokens)
        row.completion_tokens += usage.completion_tokens
        row.kv_token_seconds += beside.spent.kv_token_seconds
        row.accelerator_seconds += beside.spent.gpu_seconds
        row.cost += beside.spent.gpu_seconds * model.price_per_accelerator_hour / SECONDS_PER_HOUR

    def _count_prefill(self, prefill: PrefillSpend, of_answer: UsageKey) -> None:
        """Add a prefill's cost to its own pool's row, at that pool's price; tokens are in the answering pool's row."""
        model, spent = prefill.model, prefill.spent
        key = (of_answer[0], of_answer[1], model.id, model.version, model.pool, of_answer[5])
        row = self._rows.get(key) or self._new_row(key)
        row.kv_token_seconds += spent.kv_token_seconds
        row.accelerator_seconds += spent.gpu_seconds
        row.cost += spent.gpu_seconds * model.price_per_accelerator_hour / SECONDS_PER_HOUR

    def _count_abandoned_work(self, ended: Ended) -> None:
        """Count the engine's work if the platform gave up before any answer, which is not charged."""
        timeline = ended.timeline
        if ended.prediction is not None and timeline.connected_s and ended.admitted.route.is_read:
            served_s = timeline.ended_s - timeline.connected_s
            self._count_lost_attempt(ended.admitted, ended.prediction, served_s, None, 0)

    def _count_lost_attempt(
        self, admitted: Admitted, prediction: Prediction, served_s: float, usage: Usage | None, tokens: int
    ) -> None:
        model, replica = admitted.model, prediction.replica
        prompt_tokens = max(0, admitted.features.prompt_tokens - prediction.cached_tokens)
        prefill_s = prompt_tokens * replica.prefill_ms_per_token / 1000.0
        worked_s = max(0.0, served_s) if prefill_s > served_s else prefill_s
        row = self._row_of(admitted, model)
        row.lost_attempts += 1
        row.lost_prompt_tokens += prompt_tokens
        row.lost_completion_tokens += max(tokens, usage.completion_tokens if usage is not None else 0)
        decode_s = max(0.0, served_s - worked_s) if tokens else 0.0
        busy_s = worked_s + gpu_seconds(0, 0.0, decode_s, replica.running + 1.0)
        _add_lost(row, model, busy_s * model.accelerators_per_replica)


def _add_lost(row: UsageRow, model: ResolvedModel, accelerator_s: float) -> None:
    row.lost_accelerator_seconds += accelerator_s
    row.lost_cost += accelerator_s * model.price_per_accelerator_hour / SECONDS_PER_HOUR
