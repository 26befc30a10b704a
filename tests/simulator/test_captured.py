"""Request traces as a workload: requested models, shared prompts, missing values and hostile files."""

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from functions.simulator.workload.captured import BLOCK_TOKENS, captured
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.trace_text import TraceUnreadable
from functions.simulator.workload.traces import block_tokens_of, read_trace


def row(at_s: float, **changes: Any) -> dict[str, Any]:
    return {
        "ts": 1_800_000_000.0 + at_s, "request_id": f"r{at_s}", "tenant_id": "acme", "model_id": "acme/bot",
        "adapter_id": "acme/bot@sha256:ab", "pool": "small", "session_id": "", "class": "interactive",
        "prompt_tokens": 640, "cached_tokens": 0, "completion_tokens": 50, "decode_tokens": 50, "degraded_from": "",
        "status": 200, "route_score": {"anything": 1},
    } | changes  # fmt: skip


def read(tmp_path: Path, *found: dict[str, Any]) -> list[WorkloadRequest]:
    (tmp_path / "requests-0000000000001-7.ndjson").write_bytes(
        b"".join(msgspec.json.encode(one) + b"\n" for one in found)
    )
    return list(read_trace(tmp_path))


def test_rows_of_all_files_come_in_order_of_arrival(tmp_path: Path) -> None:
    """Two processes wrote the rows in the order in which requests ended."""
    for number, times in enumerate(((5.0, 1.0), (0.5, 3.0))):
        lines = b"".join(msgspec.json.encode(row(at_s)) + b"\n" for at_s in times)
        (tmp_path / f"requests-000000000000{number}-7.ndjson.gz").write_bytes(gzip.compress(lines))
    found = list(read_trace(tmp_path))
    assert [asked.at_s for asked in found] == pytest.approx([0.0, 0.5, 2.5, 4.5], abs=1e-6)
    assert [asked.at_s for asked in captured(tmp_path, last_s=3.0)] == pytest.approx([0.0, 2.0], abs=1e-6)
    assert block_tokens_of(tmp_path) == BLOCK_TOKENS


def test_requested_model_counts_and_not_the_answering_one(tmp_path: Path) -> None:
    base = {"adapter_id": "", "pool": "large", "model_id": "large"}
    found = read(
        tmp_path,
        row(0.0),
        row(1.0, **base),
        row(2.0, **base, degraded_from="acme/bot"),
        row(3.0, adapter_id="", pool="", prompt_tokens=None, cached_tokens=None, completion_tokens=None),
    )
    bot, large = ("acme/bot@sha256:ab", "small"), (None, "large")
    assert [(asked.adapter, asked.pool) for asked in found] == [bot, large, bot, bot]


def test_refused_requests_get_the_mean_length_of_their_tenant(tmp_path: Path) -> None:
    unknown = {"prompt_tokens": None, "cached_tokens": None, "completion_tokens": None, "decode_tokens": 0}
    found = read(
        tmp_path,
        row(0.0, prompt_tokens=100, completion_tokens=10),
        row(1.0, prompt_tokens=300, completion_tokens=30),
        row(2.0, tenant_id="globex", prompt_tokens=2000, completion_tokens=200),
        row(3.0, **unknown),
        row(4.0, tenant_id="nobody", **unknown),
        row(5.0, **(unknown | {"decode_tokens": 7})),
    )
    lengths = [(asked.prompt_tokens, asked.output_tokens) for asked in found]
    assert lengths[3:] == [(200, 20), (800, 80), (200, 7)]


def test_request_without_known_lengths_gets_defaults(tmp_path: Path) -> None:
    [found] = read(tmp_path, row(0.0, prompt_tokens=None, completion_tokens=None, decode_tokens=0))
    assert (found.prompt_tokens, found.output_tokens) == (512, 128)


def test_next_turn_of_a_chat_begins_with_the_last_turn_and_its_answer(tmp_path: Path) -> None:
    turns = [
        row(float(number), session_id="s", prompt_tokens=640 * (number + 1), completion_tokens=128)
        for number in range(3)
    ]
    found = read(tmp_path, *turns, row(9.0, session_id="other"))
    for one, other in pairwise(found[:3]):
        assert other.blocks[: len(one.blocks) + 2] == one.blocks + other.blocks[len(one.blocks) : len(one.blocks) + 2]
        assert len(set(one.blocks) & set(other.blocks)) == len(one.blocks)
    assert not set(found[3].blocks) & set(found[2].blocks)
    assert [len(asked.blocks) for asked in found] == [10, 20, 30, 10]


def test_prompts_without_a_session_share_what_was_cached(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        row(0.0, cached_tokens=256),
        row(1.0, cached_tokens=400),
        row(2.0, tenant_id="globex", cached_tokens=256),
        row(3.0),
    )
    assert found[0].blocks[:4] == found[1].blocks[:4]
    assert not set(found[0].blocks[4:]) & set(found[1].blocks)
    assert not set(found[0].blocks) & set(found[2].blocks)
    assert not set(found[3].blocks) & {block for asked in found[:3] for block in asked.blocks}


def test_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "requests-0000000000001-7.ndjson"
    path.write_bytes(msgspec.json.encode(row(0.0)) + b'\n{"ts": 18')
    assert len(list(read_trace(path))) == 1
    path.write_bytes(b'{"ts": 18\n' + msgspec.json.encode(row(0.0)) + b"\n")
    with pytest.raises(TraceUnreadable, match="line 1: "):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"class": "gold"}, "line 1: class 'gold' is none of interactive"),
        ({"prompt_tokens": -1}, "line 1: a time or a number of tokens"),
        ({"ts": -1.8e9}, "line 1: a time or a number of tokens"),
        ({"tenant_id": 7}, r"line 1: Expected `str`.*tenant_id"),
    ],
)
def test_invalid_row_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceUnreadable, match=words):
        read(tmp_path, row(0.0) | changes)


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceUnreadable, match="neither request traces"):
        list(read_trace(tmp_path))
