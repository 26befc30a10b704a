"""Usage over HTTP: gateways report it, tenants read their own, the operator reads all of it and the idle cost."""

import msgspec
import pytest

from functions.fleet.usage_report import USAGE_PATH, UsageReport, UsageRow, encode
from functions.registry.sql import usage
from functions.registry.sql.usage import MinuteOfPool
from tests.registry.catalogue_rig import Rig
from tests.registry.rig import error_of

ACME = UsageRow(0, "acme", "acme/bot", "v1", "base", "interactive", 2, 0, 1, 600, 200, 400, 9.0, 720.0, 2.0, 1, 7)
GLOBEX = UsageRow(0, "globex", "base", "v1", "base", "batch", 1, prompt_tokens=5, completion_tokens=5)
REPORT = UsageReport("a" * 32, 1, "gateway", (ACME, GLOBEX))


async def send_report(rig: Rig, report: UsageReport = REPORT, who: str | None = None) -> bool:
    options = {"content": encode(report)}
    answer = await (rig.call("POST", USAGE_PATH, who, **options) if who else rig.call("POST", USAGE_PATH, **options))
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["is_new"])


async def test_repeated_report_is_counted_once_and_always_answered(catalogue: Rig) -> None:
    assert [await send_report(catalogue) for _ in range(3)] == [True, False, False]
    found = await catalogue.get("/v1/usage")
    assert found["total"]["requests"] == 3 and found["last_told_unix_s"] == 1000.0


async def test_tenant_sees_only_its_own_usage(catalogue: Rig) -> None:
    await send_report(catalogue)
    found = await catalogue.get("/v1/usage", "acme-reader", by="tenant,model,day")
    (row,) = found["data"]
    assert (row["tenant"], row["model"], row["day"]) == ("acme", "acme/bot", 0)
    assert (row["requests"], row["left"], row["prompt_tokens"], row["cached_tokens"]) == (2, 1, 600, 200)
    assert (row["accelerator_seconds"], row["cost"], row["cost_per_million_tokens"]) == (720.0, 2.0, 2000.0)
    assert found["total"]["requests"] == 2
    assert not [name for name in row if name.startswith("lost_")]
    other = await catalogue.get("/v1/usage", "acme-reader", tenant="globex", by="tenant")
    assert (other["data"], other["total"]) == ([], None), "as of a tenant that is nowhere"


async def test_operator_sees_all_usage_and_losses(catalogue: Rig) -> None:
    await send_report(catalogue)
    found = await catalogue.get("/v1/usage", by="tenant")
    assert [(row["tenant"], row["lost_prompt_tokens"]) for row in found["data"]] == [("acme", 7), ("globex", 0)]
    assert (await catalogue.get("/v1/usage", tenant="globex"))["total"]["requests"] == 1


async def test_pool_cost_is_for_the_operator_only(catalogue: Rig) -> None:
    await send_report(catalogue)
    seen = [MinuteOfPool("base", 1, 4, 10.0), MinuteOfPool("large", 1, 4, 10.0)]
    for minute in range(6):
        catalogue.database.write_unaudited(lambda c, minute=minute: usage.count_minute(c, minute, seen))
    base, large = (await catalogue.get("/v1/usage/pools"))["data"]
    assert (base["pool"], base["minutes_seen"], base["paid_cost"], base["tokens"]) == (
        "base",
        6,
        pytest.approx(4),
        1010,
    )
    assert (base["used_ratio"], base["idle_accelerator_seconds"]) == (0.5, 720.0)
    assert base["break_even_per_million_tokens"] == pytest.approx(4 / 1010 * 1e6)
    assert (large["idle_cost"], large["break_even_per_million_tokens"]) == (pytest.approx(4), None)
    refused = await catalogue.call("GET", "/v1/usage/pools", "acme-reader")
    assert error_of(refused)["code"] == "operator_only"


async def test_only_gateways_send_usage_and_only_valid_reports(catalogue: Rig) -> None:
    refused = await catalogue.call("POST", USAGE_PATH, "acme-writer", content=encode(REPORT))
    assert refused.status_code == 403
    for body in (b"", b"{}", encode(msgspec.structs.replace(REPORT, source="x")), encode(REPORT)[:-1]):
        assert (await catalogue.call("POST", USAGE_PATH, content=body)).status_code == 400
    negative = msgspec.structs.replace(REPORT, rows=(msgspec.structs.replace(ACME, requests=-1),))
    assert (await catalogue.call("POST", USAGE_PATH, content=encode(negative))).status_code == 400
    assert (await catalogue.get("/v1/usage"))["total"] is None


@pytest.mark.parametrize("query", ["by=tenant,tenant", "by=key", "since=9&until=8", "since=-1", "tenant=A+B"])
async def test_invalid_usage_query_is_refused_with_a_message(catalogue: Rig, query: str) -> None:
    assert (await catalogue.call("GET", f"/v1/usage?{query}")).status_code == 400


async def test_inference_key_cannot_read_usage(catalogue: Rig) -> None:
    assert (await catalogue.call("GET", "/v1/usage", "acme-plain")).status_code == 403
