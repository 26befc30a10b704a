"""Host memory for KV blocks that leave the accelerator, as an InferenceService declares it.

The engine's own arguments declare it and its size:

    --kv-offloading-size=64                        GiB, of all ranks together (vLLM's connector; `native` or `lmcache`)
    --kv-transfer-config={"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": ...}}

The agent measures at the engine how fast blocks are reloaded. Until then an annotation may state it, next to the
bytes of a token's KV (`prefill_role.KV_BYTES_ANNOTATION`):

    annotation  shoal.dev/kv-reload-gigabytes-per-s        from host memory to the accelerators of one replica

Worked example (test_the_prologues_example): 64 GiB at 131,072 bytes a token hold 524,288 tokens; at 25 GB/s a
prompt of 8,192 tokens is reloaded in 43 ms.
"""

import json
import re
from collections.abc import Iterator, Mapping

from functions.api.kinds.base import Finding
from functions.api.problems import shown

RELOAD_ANNOTATION = "shoal.dev/kv-reload-gigabytes-per-s"
SIZE = "--kv-offloading-size"
TRANSFER_CONFIG = "--kv-transfer-config"
OFFLOADING_CONNECTORS = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector"})
MAX_HOST_BYTES = 2**50
ALLOWED = "a number of GiB above 0, such as 64"

_NUMBER = re.compile(r"\d{1,6}(?:\.\d{1,3})?")
_MAX_CONFIG_CHARS = 64 * 1024


def host_bytes(size: str | None, transfer_config: str | None) -> int | None:
    """Return the bytes of host memory for KV blocks, by the first of the two arguments that is given; None if there are
    none or they are unreadable (see `findings`)."""
    if size is not None:
        return _gibibytes(size)
    found = _config(transfer_config).get("kv_connector_extra_config")
    given = found.get("cpu_bytes_to_use") if isinstance(found, dict) else None
    if _config(transfer_config).get("kv_connector") not in OFFLOADING_CONNECTORS:
        return None
    return int(given) if isinstance(given, int | float) and 0 < given <= MAX_HOST_BYTES else None


def reload_bytes_per_s(annotations: Mapping[str, str]) -> float | None:
    """Return the annotated rate (written in GB/s) in bytes per second; None without a valid one."""
    text = annotations.get(RELOAD_ANNOTATION, "")
    return float(text) * 1e9 if _NUMBER.fullmatch(text) is not None and float(text) > 0.0 else None


def findings(size: str | None, annotations: Mapping[str, str]) -> Iterator[Finding]:
    """Yield problems of the size argument and of the annotated reload rate."""
    if size is not None and _gibibytes(size) is None:
        message = f"{SIZE}: found {shown(size)}; allowed: {ALLOWED}"
        yield Finding(("spec", "predictor", "model", "args"), message)
    found = annotations.get(RELOAD_ANNOTATION)
    if found is not None and reload_bytes_per_s(annotations) is None:
        message = f"found {shown(found)}; allowed: a number above 0, such as 25"
        yield Finding(("metadata", "annotations", RELOAD_ANNOTATION), message)


def _gibibytes(text: str) -> int | None:
    size = int(float(text) * 2**30) if _NUMBER.fullmatch(text) is not None else 0
    return size if 0 < size <= MAX_HOST_BYTES else None


def _config(text: str | None) -> Mapping[str, object]:
    if text is None or len(text) > _MAX_CONFIG_CHARS:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # the engine will not start, and reports the reason
    return found if isinstance(found, dict) else {}
