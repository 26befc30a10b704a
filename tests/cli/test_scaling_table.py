"""Pool sizes in `shoal status`."""

from typing import Any

from rich.console import Console

from functions.cli.status_tables import scaling_table
from functions.controller.autoscaling.allocation import Allocation
from functions.controller.autoscaling.scaler import DesiredSize, PoolSize


def shown(wanted: DesiredSize | None, operators: int | None = None, held: str = "") -> dict[str, Any]:
    return PoolSize.from_allocation("llama-8b", Allocation(4, frozenset({3})), wanted, operators, held).to_dict()


def text_of(*pools: dict[str, Any]) -> str:
    console = Console(width=120)
    table = scaling_table(pools, now_unix_s=160.0)
    assert table is not None
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_number_its_age_and_the_reason() -> None:
    wanted = DesiredSize(5, 1, "rule", "queue_seconds > 0.5: +2 [0.9 s]", since_unix_s=100.0)
    row = text_of(shown(wanted)).splitlines()[1]
    assert row.split()[:6] == ["llama-8b", "3", "1", "5", "60", "s"]
    assert "queue_seconds > 0.5: +2 [0.9 s]" in row


def test_what_holds_it_back_stands_beside_the_reason() -> None:
    wanted = DesiredSize(5, 1, "rule", "a rule", since_unix_s=100.0)
    assert "a rule; no memory" in text_of(shown(wanted, held="no memory"))
    assert "--replicas 2 overrides the autoscaler" in text_of(shown(wanted, operators=2))


def test_pools_without_autoscaling_are_not_listed() -> None:
    assert scaling_table([PoolSize.from_allocation("a", Allocation(2), None, None, "").to_dict()]) is None
