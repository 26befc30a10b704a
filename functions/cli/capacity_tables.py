"""Results of `shoal capacity` and their output: tables of memory, speed and replicas, and placement; or JSON."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from functions.cli.capacity_comparison import PrefillComparison
from functions.cli.terminal import make_console
from functions.decisions.capacity.accelerators import GIB, Accelerator
from functions.decisions.capacity.cost import break_even_tokens_per_s, cost_per_million_tokens
from functions.decisions.capacity.memory import MemoryPlan
from functions.decisions.capacity.packing import Packing
from functions.decisions.capacity.service import ServedPool
from functions.decisions.capacity.speed import Speed
from functions.simulator.prefill_sizing import Apart
from functions.simulator.replicas_needed import Needed, OfferedLoad


@dataclass(slots=True)
class PoolSizing:
    """Results for one pool. `device` is None if the pool runs on CPU."""

    pool: ServedPool
    device: Accelerator | None
    memory: MemoryPlan
    speed: Speed | None
    load: OfferedLoad | None = None
    needed: Needed | None = None
    trouble: str = ""  # why no number of replicas is enough
    comparison: PrefillComparison | None = None  # with a separate prefill pool
    reading: int | None = None  # replicas of a prefill pool that the load needs; 0: it does not pay
    price_per_hour: float | None = None  # price of one accelerator
    elsewhere_per_million: float | None = None

    @property
    def kept_by(self) -> Needed | Apart | None:
        """The arrangement that carries the load at the lower cost: one pool, or a prefill and a decode pool."""
        is_apart = self.comparison is not None and self.comparison.pays
        return self.comparison.apart if self.comparison is not None and is_apart else self.needed

    @property
    def replicas(self) -> int:
        """Replicas that the load needs in the chosen arrangement; without a load, the declared number."""
        if self.reading is not None:
            return self.reading
        kept_by = self.kept_by
        if isinstance(kept_by, Apart):
            return kept_by.writing
        return kept_by.replicas if kept_by is not None else self.pool.replicas[0]

    @property
    def cost_per_million(self) -> float | None:
        kept_by = self.kept_by
        if self.price_per_hour is None or kept_by is None or not self._is_priced:
            return None
        return cost_per_million_tokens(self._price(), kept_by.tokens_per_s)

    @property
    def break_even_tokens_per_s(self) -> float | None:
        if self.price_per_hour is None or not self.elsewhere_per_million or not self._is_priced:
            return None
        return break_even_tokens_per_s(self._price(), self.elsewhere_per_million)

    @property
    def _is_priced(self) -> bool:
        """True if the prices of all pools that carry the load are known."""
        return not isinstance(self.kept_by, Apart) or (
            self.comparison is not None and self.comparison.unit == "an hour"
        )

    def _price(self) -> float:
        """Return the price an hour of all that carries the load, including a prefill pool that pays; 0 if it is not
        known."""
        if self.comparison is not None and self.comparison.pays and self.comparison.unit == "an hour":
            return self.comparison.cost or 0.0
        return (self.price_per_hour or 0.0) * self.replicas * max(1, self.pool.serving.accelerators)


def show(pools: Sequence[PoolSizing], packing: Packing | None) -> None:
    console = make_console()
    console.print(_memory(pools))
    for each in pools:
        if not each.memory.fits:
            console.print(f"[red]{each.pool.pool} does not fit[/]: {_missing(each)}")
        if each.trouble:
            console.print(f"[red]{each.pool.pool}[/]: {each.trouble}", highlight=False)
    if any(each.speed is not None for each in pools):
        console.print()
        console.print(_speed(pools))
    for each in pools:
        if each.comparison is not None:
            console.print(f"\n{each.pool.pool}: {each.comparison.words}", highlight=False, soft_wrap=True)
    if packing is not None:
        _places(console, packing)
    console.print()
    exact = "an engine's start-up line and a calibration are exact"
    console.print(f"[dim]estimated from data sheets and arguments; {exact}[/]")


def _missing(each: PoolSizing) -> str:
    memory = each.memory
    needed = memory.least_kv_tokens * memory.kv_bytes_per_token
    text = f"{max(0.0, needed - memory.cache) / GIB:.1f} GiB too little on each accelerator"
    if memory.cache > 0:
        text += f" for one conversation of {memory.least_kv_tokens:,} tokens; use a shorter --max-model-len"
    return f"{text}; use more tensor parallelism, fewer bits a weight, or fewer adapter slots"


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def _memory(pools: Sequence[PoolSizing]) -> Table:
    table = _table(
        "pool", "on", "parameters", "weights", "adapters", "working", "cache GiB", "KV tokens", "context", "at once"
    )
    for each in pools:
        memory, serving, shape = each.memory, each.pool.serving, each.pool.shape
        at_once = min(memory.concurrency(serving.context_tokens), serving.max_sequences)
        table.add_row(
            each.pool.pool,
            f"{serving.accelerators} x {each.device.name}" if each.device is not None else "CPU",
            _big(shape.parameters),
            *(f"{size / GIB:,.1f}" for size in (memory.weights, memory.adapters, memory.working, memory.cache)),
            f"{memory.kv_tokens:,}" if shape.has_cache else "none kept",
            f"{serving.context_tokens:,}",
            f"{at_once:,.1f}" if shape.has_cache else "-",
        )
    return table


def _speed(pools: Sequence[PoolSizing]) -> Table:
    table = _table(
        "pool", "load", "ms a token alone", "prompt tokens/s", "replicas", "TTFT p99 ms", "ITL p99 ms",
        "1 M tokens", "break-even tokens/s",
    )  # fmt: skip
    for each in pools:
        if each.speed is None:
            continue
        if each.pool.reads:
            table.add_row(
                each.pool.pool,
                "reads prompts",
                "-",
                f"{1000 / each.speed.ms_per_prompt_token:,.0f}",
                str(each.replicas),
                *["-"] * 4,
            )
            continue
        needed, load = each.kept_by, each.load
        table.add_row(
            each.pool.pool,
            f"{load.requests_per_s:g}/s of {load.prompt_tokens}+{load.output_tokens}" if load is not None else "",
            f"{each.speed.step_of_ms(1, each.pool.serving.context_tokens / 2):.1f}",
            f"{1000 / each.speed.ms_per_prompt_token:,.0f}",
            f"{each.replicas:,}" if needed is not None else "-",
            f"{needed.ttft_p99_ms:,.0f}" if needed is not None else "-",
            f"{needed.itl_p99_ms:,.0f}" if needed is not None and needed.itl_p99_ms is not None else "-",
            _money(each.cost_per_million),
            f"{each.break_even_tokens_per_s:,.0f}" if each.break_even_tokens_per_s is not None else "-",
        )
    return table


def _places(console: Console, packing: Packing) -> None:
    console.print()
    patterns = Counter(
        (node.product, node.accelerators, node.used, tuple(sorted(Counter(node.placed).items())))
        for node in packing.nodes
    )
    table = _table("nodes", "product", "used", "holds")
    table.columns[3].justify = "left"
    for (product, size, used, placed), count in sorted(patterns.items(), key=lambda each: (-each[0][2], each[0][0])):
        holds = ", ".join(f"{number} x {pool}" for pool, number in placed) or "nothing"
        table.add_row(f"{count:,}", product, f"{used} of {size}", holds)
    console.print(table)
    console.print(f"{packing.used_ratio:.0%} of all accelerators are used")
    for pool, number in packing.unplaced.items():
        console.print(f"[red]no place for {number} of {pool}[/]: {packing.reasons[pool]}")


def show_json(pools: Sequence[PoolSizing], packing: Packing | None) -> None:
    shown: dict[str, Any] = {"pools": [_pool(each) for each in pools]}
    if packing is not None:
        shown["packing"] = {
            "nodes": [asdict(node) for node in packing.nodes],
            "unplaced": packing.unplaced,
            "reasons": packing.reasons,
            "used_ratio": packing.used_ratio,
        }
    sys.stdout.write(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode() + "\n")


def _pool(each: PoolSizing) -> dict[str, Any]:
    return {
        "pool": each.pool.pool,
        "model": each.pool.shape.name,
        "parameters": each.pool.shape.parameters,
        "accelerator": each.device.name if each.device is not None else None,
        "accelerators_per_replica": each.pool.serving.accelerators,
        "memory": asdict(each.memory),
        "context_tokens": each.pool.serving.context_tokens,
        "concurrency_at_context": each.memory.concurrency(each.pool.serving.context_tokens),
        "speed": asdict(each.speed) if each.speed is not None else None,
        "load": asdict(each.load) if each.load is not None else None,
        "needed": asdict(each.needed) if each.needed is not None else None,
        "prefill_apart": _apart(each.comparison) if each.comparison is not None else None,
        "trouble": each.trouble or None,
        "cost_per_million_tokens": each.cost_per_million,
        "break_even_tokens_per_s": each.break_even_tokens_per_s,
    }


def _apart(comparison: PrefillComparison) -> dict[str, Any]:
    return {
        "pays": comparison.pays,
        "prefill_pool": comparison.reads,
        "needed": asdict(comparison.apart) if comparison.apart is not None else None,
        "cost": comparison.cost,
        "one_pool_cost": comparison.one_cost,
        "unit": comparison.unit,
        "in_words": comparison.words,
    }


def _big(number: int) -> str:
    return f"{number / 1e9:,.1f} B" if number >= 1e9 else f"{number / 1e6:,.0f} M"


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"
