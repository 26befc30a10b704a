"""ServeGen's clients: rates, lengths and bursts as recorded; any window by itself; hostile files."""

import gzip
import os
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from statistics import median

import pytest

from functions.simulator.workload.trace_text import TraceUnreadable
from studies.servegen.clients import Clients, read_clients
from studies.servegen.day import BLOCK_TOKENS, ServeGenDay

RATES = """\
client_id,window_start_s,rate_rps,cv,pattern,pat_arg1,pat_arg2
7,0,1.0,1.0,Gamma,1,1
7,600,4.0,1.0,Gamma,1,1
7,1200,1.0,1.0,Gamma,1,1
3,0,2.0,9.0,Weibull,1,1
9,600,0.9,0.5,Gamma,1,1
"""
LENGTHS = """\
client_id,window_start_s,field,mean,p01,p05,p10,p25,p50,p75,p90,p95,p99,max
7,0,input_tokens,9,100,100,100,100,200,300,300,300,300,300
7,0,output_tokens,9,10,10,10,10,10,10,10,10,10,10
7,21600,input_tokens,9,1,1,1,1,1,1,1,1,1,1
7,21600,output_tokens,9,10,10,10,10,10,10,10,10,10,10
3,0,text_tokens,9,50,50,50,50,50,50,50,50,50,50
3,0,image_tokens,9,1000,1000,1000,1000,1000,1000,1000,1000,1000,1000
3,0,output_tokens,9,20,20,20,20,20,20,20,20,20,20
3,0,reason_ratio,1,0,0,0,0,0,0,0,0,0,1
"""


def clients(tmp_path: Path, begins_s: int = 0, seconds: int = 1800, rates: str = RATES) -> Clients:
    (tmp_path / "p_rates.csv").write_text(rates)
    (tmp_path / "p_lengths.csv.gz").write_bytes(gzip.compress(LENGTHS.encode()))
    return read_clients(tmp_path, "p", begins_s, seconds)


def test_each_client_sends_at_its_recorded_rate(tmp_path: Path) -> None:
    found = list(ServeGenDay(clients=clients(tmp_path)).requests(1))
    per = Counter((asked.tenant, int(asked.at_s // 600)) for asked in found)
    assert per == {("p-7", 0): 600, ("p-7", 1): 2400, ("p-7", 2): 600, ("p-3", 0): 1200, ("p-9", 1): 540}
    assert all(one.at_s <= other.at_s for one, other in pairwise(found))


def test_another_rate_keeps_the_shape(tmp_path: Path) -> None:
    day = ServeGenDay(clients=clients(tmp_path), requests_per_s=1.0)
    assert [rate for _, rate in day.rates_per_s()] == pytest.approx([1.011, 1.652, 0.337], abs=0.001)
    assert sum(1 for _ in day.at_rate(0.5, seed=3)) == pytest.approx(900, abs=3)


def test_window_equals_that_part_of_the_day(tmp_path: Path) -> None:
    whole = [
        (round(a.at_s - 600, 6), a.tenant, a.prompt_tokens) for a in ServeGenDay(clients=clients(tmp_path)).requests(5)
    ]
    part = [
        (round(a.at_s, 6), a.tenant, a.prompt_tokens)
        for a in ServeGenDay(clients=clients(tmp_path, 600, 600)).requests(5)
    ]
    assert part == [row for row in whole if 0.0 <= row[0] < 600.0]
    other = list(ServeGenDay(clients=clients(tmp_path, 600, 600)).requests(6))
    assert [row[0] for row in part] != [round(asked.at_s, 6) for asked in other]


def test_lengths_match_the_client_and_the_time(tmp_path: Path) -> None:
    by_tenant: dict[str, list[int]] = {}
    for asked in ServeGenDay(clients=clients(tmp_path)).requests(1):
        by_tenant.setdefault(asked.tenant, []).append(asked.prompt_tokens)
    assert set(by_tenant["p-3"]) == {1050}  # text and image together
    assert median(by_tenant["p-7"]) == pytest.approx(200, abs=10)
    assert (min(by_tenant["p-7"]), max(by_tenant["p-7"])) == (100, 300)
    later = clients(tmp_path, 21_600, 600, RATES + "7,21600,1.0,1.0,Gamma,1,1\n")
    assert {asked.prompt_tokens for asked in ServeGenDay(clients=later).requests(1)} == {1}


def test_a_client_without_lengths_borrows_those_of_the_nearest_rate(tmp_path: Path) -> None:
    known = clients(tmp_path)
    assert known.borrowing == 1
    lent = {a.prompt_tokens for a in ServeGenDay(clients=known).requests(1) if a.tenant == "p-9"}
    assert lent == {1050}  # client 3, since its 2/s in all is nearer to 0.9/s than 6/s


def test_a_clients_prompts_may_share_their_beginning(tmp_path: Path) -> None:
    day = ServeGenDay(clients=clients(tmp_path), share_ratio=0.5)
    seen = {str(asked.tenant): asked.blocks for asked in day.requests(1)}
    assert len(seen["p-3"]) == 525 // BLOCK_TOKENS
    assert not set(seen["p-3"]) & set(seen["p-7"])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("7,0,x,1,G,1,1", "line 7: could not convert"),
        ("7,0,nan,1,G,1,1", "line 7: a rate"),
        ("7,5,1,1,G,1,1", "line 7: a rate, a cv or a window"),
        ("7,0,1,-1,G,1,1", "line 7: a rate"),
        ("7,0,1", "line 7: 3 cells where the header has 7"),
    ],
)
def test_hostile_rows_are_refused_with_their_line(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(TraceUnreadable, match=words):
        clients(tmp_path, rates=RATES + row + "\n")


def test_missing_pool_or_window_is_refused(tmp_path: Path) -> None:
    clients(tmp_path)
    with pytest.raises(TraceUnreadable, match=r"no q_rates.csv or .csv.gz; pools there: p"):
        read_clients(tmp_path, "q")
    with pytest.raises(TraceUnreadable, match="no requests from second 86400 on"):
        read_clients(tmp_path, "p", 86_400)


@pytest.mark.skipif(
    "SHOAL_TRACES_DIR" not in os.environ, reason="needs the traces: set SHOAL_TRACES_DIR to their folder"
)
def test_a_day_has_the_recorded_rates() -> None:
    """The worked example of the prologue."""
    known = read_clients(Path(os.environ["SHOAL_TRACES_DIR"]) / "servegen", "language_m-large")
    recorded = [rate for _, rate in ServeGenDay(clients=known).rates_per_s()]
    assert (len(recorded), len(known.names), known.borrowing) == (144, 101, 15)
    assert (min(recorded), max(recorded)) == pytest.approx((151.2, 583.0), abs=0.1)
    day = ServeGenDay(clients=known, requests_per_s=20.0)
    scaled = [rate for _, rate in day.rates_per_s()]
    assert (min(scaled), max(scaled)) == pytest.approx((10.8, 41.7), abs=0.1)
    first = list(islice(day.requests(1), 20_000))
    assert 20 < median(asked.prompt_tokens for asked in first) < 2000
