"""Fields that a batch reads from the answers to its lines."""

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry

from functions.api.ids import TenantId
from functions.decisions.batch.pace import BatchPace
from functions.gateway.batch.line_sender import LineRequest, LineSender, seconds_of
from functions.gateway.batch.pacer import LinePacer
from functions.gateway.batch.shared import BatchMetrics
from functions.gateway.http.headers import RawHeaders
from functions.gateway.http.sink import Sink
from functions.gateway.intake.routes import COMPLETIONS, Route
from functions.gateway.quota.refusals import duration
from functions.gateway.tenant_limits import TenantShares
from tests.gateway.rig import Rig


@pytest.mark.parametrize("microseconds", [0, 1_000, 10_000, 999_000, 1_000_000, 6_500_000, 62_000_000, 3_723_000_000])
def test_duration_round_trips(microseconds: int) -> None:
    assert seconds_of(duration(microseconds)) == pytest.approx(microseconds / 1e6, abs=1.0)
    assert seconds_of(duration(10_000)) == pytest.approx(0.01)


async def test_line_resent_after_a_takeover_has_another_request_id() -> None:
    asked: list[bytes] = []

    def handle(
        route: Route, headers: RawHeaders, body: bytes, sink: Sink, received_s: float, *, composed: bool = False
    ) -> None:
        asked.append(dict(headers)[b"x-request-id"])
        sink.whole(200, [], b"{}")

    services, shares, metrics = (
        Rig().gateway.services,
        TenantShares(4, 4),
        BatchMetrics(CollectorRegistry(), int, int),
    )
    for claim in (1, 2):
        pace = BatchPace(4.0)
        pacer = LinePacer(
            services, TenantId("acme"), pace, slots=shares, answers=TenantShares(2**30, 2**30), open_batches=Counter(),
            clock=lambda: 0.0,
        )  # fmt: skip
        sender = LineSender(
            lambda: 0.0, handle, COMPLETIONS, "batch_1", claim, "Bearer x", pace, pacer, metrics, lambda: 0.5
        )
        await sender.send_until_done(LineRequest(6, "seven", b"{}"))
    assert asked == [b"batch_1.7.1.1", b"batch_1.7.2.1"]
