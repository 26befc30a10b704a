"""Parser of the options of `shoal capacity`. Errors name the expected form.

Several options take `NAME=VALUE`, or a value alone for every name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from functions.api.kinds.quantities import duration_s
from functions.cli.refused import CommandRefused
from functions.decisions.capacity.packing import AcceleratorNode

_MOST_NODES = 100_000


@dataclass(slots=True, kw_only=True)
class CapacityRequest:
    """The parsed and checked options of the command."""

    pools: tuple[str, ...] = ()
    model_dir: Path | None = None
    products: dict[str, str] = field(default_factory=dict)  # key: pool, or "" for all
    loads: dict[str, float] = field(default_factory=dict)  # requests per second
    prompt_tokens: int = 1000
    output_tokens: int = 200
    ttft_slo_s: float = 1.5
    itl_slo_s: float | None = None
    nodes: list[AcceleratorNode] = field(default_factory=list)
    prices: dict[str, float] = field(default_factory=dict)  # price an hour; key: product, or "" for all
    elsewhere_per_million: float | None = None


def capacity_request(
    *,
    pools: Sequence[str],
    model_dir: Path | None,
    products: Sequence[str],
    loads: Sequence[str],
    prompt_tokens: int,
    output_tokens: int,
    ttft_slo: str,
    itl_slo: str | None,
    nodes: Sequence[str],
    prices: Sequence[str],
    api_price: float | None,
) -> CapacityRequest:
    return CapacityRequest(
        pools=tuple(pools),
        model_dir=model_dir,
        products=products_from(products),
        loads=positive_numbers(loads, "--load"),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        ttft_slo_s=_seconds(ttft_slo, "--ttft-slo"),
        itl_slo_s=_seconds(itl_slo, "--itl-slo") if itl_slo is not None else None,
        nodes=[node for text in nodes for node in nodes_from(text)],
        prices=positive_numbers(prices, "--price"),
        elsewhere_per_million=api_price,
    )


def _seconds(text: str, option: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise CommandRefused(f"{option} {text!r}: {error}") from error


def nodes_from(text: str) -> list[AcceleratorNode]:
    """Parse `16x8xNVIDIA-H100-80GB-HBM3`: sixteen nodes with eight accelerators each."""
    count, _, rest = text.partition("x")
    size, _, product = rest.partition("x")
    if not (count.isdecimal() and size.isdecimal() and product):
        raise CommandRefused(
            f"{text!r} is not of the form COUNTxACCELERATORSxPRODUCT, such as 16x8xNVIDIA-H100-80GB-HBM3"
        )
    number = int(count[:7])
    if not 1 <= number <= _MOST_NODES or not 1 <= int(size[:4]) <= 1024:
        raise CommandRefused(f"{text!r}: at most {_MOST_NODES} nodes with at most 1024 accelerators each")
    return [AcceleratorNode(f"{product.lower()}-{index:05d}", product, int(size)) for index in range(number)]


def by_name(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse `NAME=VALUE` texts. A value alone gets the empty name. Fail if a name is used twice or a value is empty."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        key, value = (name, value) if equals else ("", name)
        if key in found or not value:
            raise CommandRefused(f"{option} {text!r}: use each name once, as NAME=VALUE, or VALUE for all")
        found[key] = value
    return found


def products_from(texts: Sequence[str]) -> dict[str, str]:
    """Parse `POOL=PRODUCT` or `PRODUCT`, each also with a description: `MI300X=191.5:5.3:1307:2614` is for all."""
    described = [text for text in texts if text.count("=") == 1 and ":" in text]
    found = by_name([text for text in texts if text not in described], "--accelerator")
    if len(described) > 1 or (described and "" in found):
        raise CommandRefused("--accelerator for all pools is given twice: name the pools, as POOL=PRODUCT")
    return found | ({"": described[0]} if described else {})


def positive_numbers(texts: Sequence[str], option: str) -> dict[str, float]:
    """Parse like `by_name`, with numbers as values. Fail unless each is above 0 and below 1e9."""
    found: dict[str, float] = {}
    for name, value in by_name(texts, option).items():
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e9:
            raise CommandRefused(f"{option}: {value!r} is not a number above 0")
        found[name] = number
    return found
