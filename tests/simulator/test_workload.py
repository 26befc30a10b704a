"""Workloads of a simulated fleet: traces read as written, and generated traffic that matches its settings."""

import gzip
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from functions.simulator.workload.traces import TraceUnreadable, read_trace

MOONCAKE = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 10, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 1024, "output_length": 20, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 5, "output_length": 30, "hash_ids": [9]}
{"timestamp": 6000, "input_length": 512, "output_length": 40, "hash_ids": [1]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def test_requests_at_one_timestamp_are_spread(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    found = list(read_trace(path))
    assert [asked.at_s for asked in found] == pytest.approx([0.0, 1.0, 2.0, 3.0])
    assert [asked.output_tokens for asked in found] == [10, 20, 30, 40]


def test_only_whole_blocks_are_shared(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(MOONCAKE.encode()))
    assert [asked.blocks for asked in read_trace(path)] == [(1, 2), (1, 2), (), (1,)]


def test_azure_times_count_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    found = list(read_trace(path))
    assert [asked.at_s for asked in found] == pytest.approx([0.0, 4.314579])
    assert (found[1].prompt_tokens, found[1].output_tokens) == (396, 109)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", MOONCAKE + "{", "line 5: "),
        ("a.jsonl", '{"timestamp": 1}\n', "line 1: .*input_length"),
        ("a.csv", AZURE + "2023-11-16 18:15:50,x,1\n", "line 4: not TIMESTAMP"),
        ("a.csv", "a,b\n1,2\n", "line 1: no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        ("a.csv", AZURE + "1,2\n", "line 4: 2 cells where the header has 3"),
        ("a.csv", AZURE + "2022-11-16 18:15:50.9951690,396,109\n", "line 4: .*sort the file"),
        ("a.jsonl", MOONCAKE + '{"timestamp": 1, "input_length": 1, "output_length": 1}', "line 5: .*sort the file"),
        ("a.jsonl", '{"timestamp": 1, "input_length": -1, "output_length": 1}', "line 1: lengths below 0"),
        ("a.jsonl", '{"timestamp": 1, "input_length": 1' + " " * 2_000_000, "line 1: longer than"),
        ("a.jsonl.gz", "no gzip", "after line 0: Not a gzipped file"),
        ("a.txt", "", "neither .jsonl"),
    ],
)
def test_unreadable_trace_is_refused_with_its_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceUnreadable, match=words):
        list(read_trace(path))


def test_trace_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(MOONCAKE.encode() + b"\xff\n")
    with pytest.raises(TraceUnreadable, match="line 5: not UTF-8"):
        list(read_trace(path))


def test_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(MOONCAKE.encode())[:-20])
    with pytest.raises(TraceUnreadable, match="ended before"):
        list(read_trace(path))


def test_empty_trace_has_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("")
    assert list(read_trace(path)) == []


TRAFFIC = Traffic(requests_per_s=40.0, seconds=200.0)


def test_generated_rate_is_even() -> None:
    """The rate holds from the first second on, because earlier chats are already under way."""
    found = list(synthetic(TRAFFIC, seed=1))
    per_quarter = Counter(int(asked.at_s / 50) for asked in found)
    assert set(per_quarter) == {0, 1, 2, 3}
    for count in per_quarter.values():
        assert count / 50 == pytest.approx(40.0, rel=0.12)
    assert all(one.at_s <= next_.at_s for one, next_ in pairwise(found))


def test_generated_requests_depend_only_on_the_seed() -> None:
    first, again, other = (
        [(asked.at_s, asked.tenant, asked.prompt_tokens, asked.blocks) for asked in synthetic(TRAFFIC, seed)]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_turns_of_a_chat_share_a_prefix() -> None:
    chats: dict[str, list[tuple[int, ...]]] = {}
    tenants: dict[str, set[tuple[int, ...]]] = {}
    system_blocks = TRAFFIC.system_tokens // BLOCK_TOKENS
    for asked in synthetic(TRAFFIC, seed=1):
        assert asked.session is not None
        chats.setdefault(asked.session, []).append(asked.blocks)
        tenants.setdefault(asked.tenant, set()).add(asked.blocks[:system_blocks])
        assert len(asked.blocks) == asked.prompt_tokens // BLOCK_TOKENS
    assert max(len(turns) for turns in chats.values()) > 5
    for turns in chats.values():
        assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(turns))
    assert all(len(beginnings) == 1 for beginnings in tenants.values())
    assert len({beginning for beginnings in tenants.values() for beginning in beginnings}) == len(tenants)


def test_tenants_follow_zipfs_law() -> None:
    chats = {asked.session: asked.tenant for asked in synthetic(TRAFFIC, seed=1)}
    counts = Counter(map(str, chats.values()))
    assert counts["t0"] / counts["t9"] == pytest.approx(10.0, rel=0.5)


def test_burstiness_matches_its_setting() -> None:
    gaps: dict[float, float] = {}
    for burstiness in (1.0, 4.0):
        traffic = Traffic(requests_per_s=40.0, seconds=300.0, turns=1, tenants=1, burstiness=burstiness)
        times = [asked.at_s for asked in synthetic(traffic, seed=1)]
        between = [later - earlier for earlier, later in pairwise(times)]
        mean = fmean(between)
        gaps[burstiness] = fmean((gap - mean) ** 2 for gap in between) ** 0.5 / mean
    assert gaps[1.0] == pytest.approx(1.0, rel=0.1)
    assert gaps[4.0] == pytest.approx(4.0, rel=0.25)
