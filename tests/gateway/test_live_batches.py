"""Files and batches with the stock openai client: gateway processes, a real store and a played engine."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from functions.artifacts.s3 import S3Settings
from tests.gateway.batch_rig import (
    PATIENCE_S,
    BatchGateway,
    CountingEngine,
    Way,
    as_file,
    create_batch,
    gateway,
    line,
    metric,
    results,
    until,
    until_metric,
)
from tests.gateway.rig import GLOBEX_KEY

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]  # starts several processes and waits for each


@pytest.fixture
async def engine(valkey_url: str) -> AsyncIterator[CountingEngine]:
    counting = CountingEngine()
    async with counting.serving(valkey_url):
        yield counting


@pytest.fixture
async def one(
    tmp_path: Path,
    valkey_url: str,
    certificate: tuple[Path, Path],
    s3_settings: S3Settings,
    engine: CountingEngine,
) -> AsyncIterator[BatchGateway]:
    process = gateway(tmp_path / "one", valkey_url, certificate, s3_settings)
    with process.start() as process.running:
        await process.ready()
        yield process


async def test_batch_life_cycle_with_the_stock_client(one: BatchGateway, engine: CountingEngine) -> None:
    async with one.client() as client:
        engine.refuse_next = 3  # "come back" does not fail a line
        sent = [line(f"c-{i}") for i in range(40)]
        sent.append(line("wrong"))
        file = await client.files.create(file=("input.jsonl", as_file(*sent)), purpose="batch")
        assert (file.bytes, file.purpose, file.filename) == (len(as_file(*sent)), "batch", "input.jsonl")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"night": "1"},
        )
        assert batch.status == "validating" and batch.metadata == {"night": "1"}

        over = await until(client, batch.id, "completed", "failed")
        assert over.status == "completed", over
        assert over.request_counts is not None and over.completed_at and over.in_progress_at and over.finalizing_at
        counts = over.request_counts
        assert (counts.total, counts.completed, counts.failed) == (41, 40, 1)
        answers = await results(client, over.output_file_id)
        assert sorted(one["custom_id"] for one in answers) == sorted(f"c-{i}" for i in range(40))
        said = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in answers}
        assert all(content == f"you said {custom_id}" for custom_id, content in said.items())
        assert {one["response"]["status_code"] for one in answers} == {200}
        (failure,) = await results(client, over.error_file_id)
        assert failure["custom_id"] == "wrong" and failure["response"]["status_code"] == 400
        assert over.usage is not None and over.usage.total_tokens > 0
        assert await metric(one, 'shoal_requests_total{class="batch",code="200"') == 40
        await until_metric(one, 'shoal_batches_total{status="completed"}', 1)

        listed = await client.files.list(purpose="batch_output")
        assert {one.id for one in listed.data} >= {over.output_file_id, over.error_file_id}
        assert batch.id in [one.id async for one in client.batches.list(limit=1)]
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(file.id)
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)


async def test_invalid_file_is_reported_line_by_line(one: BatchGateway) -> None:
    async with one.client() as client:
        batch = await create_batch(
            client,
            line("a"),
            b"{not json",
            line("a"),
            line("b", url="/v1/completions"),
            line("c", method="GET"),
            b'{"custom_id": "\xff", "method": "POST"}',
            line("d", body={"model": "globex/bot", "messages": [{"role": "user", "content": "x"}]}),
            line("e", body=line("e")["body"] | {"stream": True}),
            line("f", body={"model": "smollm2-135m"}),
            b"[" * 200 + b"]" * 200,
        )
        failed = await until(client, batch.id, "failed", "completed")
        assert failed.status == "failed" and failed.errors is not None and failed.errors.data is not None
        told = [(one.line, one.code) for one in failed.errors.data]
        assert told == [
            (2, "invalid_json_line"),
            (3, "duplicate_custom_id"),
            (4, "mismatched_url"),
            (5, "invalid_method"),
            (6, "invalid_json_line"),
            (7, "model_not_found"),
            (8, "stream_not_offered"),
            (9, "invalid_request"),
            (10, "invalid_json_line"),
        ]
        for wrong in ({"purpose": "fine-tune"}, {"purpose": "batch", "file": ("x", b"")}):
            with pytest.raises(openai.BadRequestError):
                await client.files.create(**({"file": ("x", b"{}")} | wrong))  # type: ignore[arg-type]


async def test_other_tenants_files_and_batches_are_not_found(one: BatchGateway) -> None:
    async with one.client() as acme, one.client(GLOBEX_KEY) as globex:
        batch = await create_batch(acme, line("a"))
        file_id = batch.input_file_id
        for attempt in (
            globex.files.retrieve(file_id),
            globex.files.content(file_id),
            globex.files.delete(file_id),
            globex.batches.retrieve(batch.id),
            globex.batches.cancel(batch.id),
            globex.files.retrieve("file-" + "0" * 32),
            globex.files.retrieve("acme"),
            globex.batches.retrieve("batch_x"),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        with pytest.raises(openai.BadRequestError, match="no file"):
            await globex.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
        assert not (await globex.files.list()).data and not (await globex.batches.list()).data
        await until(acme, batch.id, "completed")


@pytest.mark.soak
async def test_killed_gateways_batch_completes_elsewhere_with_every_line_once(
    one: BatchGateway,
    engine: CountingEngine,
    tmp_path: Path,
    valkey_url: str,
    certificate: tuple[Path, Path],
    s3_settings: S3Settings,
) -> None:
    """Durable results are not requested again; of the rest, at most those in flight are."""
    engine.is_held, engine.after = True, 150
    two = gateway(tmp_path / "two", valkey_url, certificate, s3_settings)
    async with one.client() as client:
        batch = await create_batch(client, *(line(f"k-{i}") for i in range(400)))
        await until(client, batch.id, "in_progress", done=100)
        assert one.running is not None
        one.running.kill()
    asked_before = engine.asked.copy()
    engine.is_held = False
    with two.start():
        await two.ready()
        async with two.client() as client:
            over = await until(client, batch.id, "completed", "failed", "expired")
            assert over.status == "completed", over
            answers = await results(client, over.output_file_id)
    assert sorted(one["custom_id"] for one in answers) == sorted(f"k-{i}" for i in range(400))
    assert over.request_counts is not None and over.request_counts.completed == 400
    twice = [said for said, times in engine.asked.items() if times > 1]
    assert len(twice) <= 256 and max(engine.asked.values()) == 2
    assert asked_before.total() >= 100
    assert len(twice) < asked_before.total(), "what was durable was asked again"


@pytest.mark.soak
async def test_cancellation_at_another_gateway_keeps_finished_lines(
    one: BatchGateway,
    engine: CountingEngine,
    tmp_path: Path,
    valkey_url: str,
    certificate: tuple[Path, Path],
    s3_settings: S3Settings,
) -> None:
    engine.is_held, engine.after = True, 50
    two = gateway(tmp_path / "two", valkey_url, certificate, s3_settings)
    with two.start():
        await two.ready()
        async with one.client() as here, two.client() as there:
            batch = await create_batch(here, *(line(f"x-{i}") for i in range(200)))
            await until(there, batch.id, "in_progress", done=40)
            with pytest.raises(openai.ConflictError):
                await there.files.delete(batch.input_file_id)
            assert (await there.batches.cancel(batch.id)).status == "cancelling"
            over = await until(there, batch.id, "cancelled", timeout_s=60)
            answers = await results(there, over.output_file_id)
            assert over.request_counts is not None and over.request_counts.total == 200
            assert 40 <= over.request_counts.completed == len(answers) < 200
            assert (await here.batches.cancel(batch.id)).status == "cancelled"
    assert await metric(one, "shoal_batch_lines_in_flight") == 0
    assert await metric(one, "shoal_open_requests") == 0, "the engine works on for nobody"


@pytest.mark.soak
async def test_store_outage_is_reported_and_waited_for(
    engine: CountingEngine,
    tmp_path: Path,
    valkey_url: str,
    certificate: tuple[Path, Path],
    s3_settings: S3Settings,
) -> None:
    """No line is lost and none is sent twice; the number of undurable results is bounded."""
    way = Way(int(s3_settings.endpoint_url.rsplit(":", 1)[1]))
    await way.open()
    through = dataclasses.replace(s3_settings, endpoint_url=f"http://127.0.0.1:{way.port}")
    process = gateway(tmp_path / "cut-off", valkey_url, certificate, through)
    engine.is_held, engine.after = True, 40
    with process.start():
        await process.ready()
        async with process.client() as client:
            batch = await create_batch(client, *(line(f"s-{i}") for i in range(600)))
            await until(client, batch.id, "in_progress", done=20)
            await way.close()
            with pytest.raises(openai.InternalServerError) as gone:
                await client.files.list()
            assert gone.value.code == "storage_unavailable" and gone.value.response.headers["retry-after"]
            engine.is_held = False
            async with asyncio.timeout(PATIENCE_S):
                while (asked := len(engine.asked)) < 256:
                    await asyncio.sleep(0.05)
            assert asked < 400, "lines were asked although nothing could be kept of them"
            await way.open()
            over = await until(client, batch.id, "completed", "failed", "expired")
            assert over.status == "completed"
            answers = await results(client, over.output_file_id)
    await way.close()
    assert sorted(one["custom_id"] for one in answers) == sorted(f"s-{i}" for i in range(600))
    assert set(engine.asked.values()) == {1}
