"""Host memory for KV blocks is read from the engine's arguments; unreadable values are findings."""

import json

import pytest

from functions.api.kinds import kv_offload
from functions.api.kinds.kv_offload import RELOAD_ANNOTATION

GIB = 2**30


def config(connector: str, **extra: object) -> str:
    return json.dumps({"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra})


def test_the_prologues_example() -> None:
    size = kv_offload.host_bytes("64", None)
    assert size is not None and size // 131_072 == 524_288
    rate = kv_offload.reload_bytes_per_s({RELOAD_ANNOTATION: "25"})
    assert rate is not None and round(8192 * 131_072 / rate * 1000) == 43


@pytest.mark.parametrize(
    ("size", "transfer", "found"),
    [
        (None, None, None),
        ("0.5", None, GIB // 2),
        ("0", None, None),
        ("many", None, None),
        (None, config("OffloadingConnector", cpu_bytes_to_use=4 * GIB), 4 * GIB),
        (None, config("SimpleCPUOffloadConnector", cpu_bytes_to_use=1e9), 10**9),
        (None, config("NixlConnector", cpu_bytes_to_use=4 * GIB), None),  # transfers blocks, stores none
        ("2", config("NixlConnector"), 2 * GIB),  # vLLM replaces that connector with its offloading connector
        (None, config("OffloadingConnector"), None),
        (None, config("OffloadingConnector", cpu_bytes_to_use="all"), None),
        (None, "{", None),
        (None, "[" * 100_000, None),
    ],
)
def test_what_an_engines_arguments_say(size: str | None, transfer: str | None, found: int | None) -> None:
    assert kv_offload.host_bytes(size, transfer) == found


@pytest.mark.parametrize(
    ("size", "rate", "wrong"),
    [("64", "25", 0), (None, None, 0), ("-1", None, 1), ("64G", None, 1), ("64", "fast", 1), ("64", "0", 1)],
)
def test_what_cannot_be_read_is_a_finding(size: str | None, rate: str | None, wrong: int) -> None:
    """No engine starts with `--kv-offloading-size=64G`, so the push is rejected."""
    annotations = {RELOAD_ANNOTATION: rate} if rate is not None else {}
    assert len(list(kv_offload.findings(size, annotations))) == wrong
