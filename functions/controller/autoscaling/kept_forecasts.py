"""What pools' forecasts have learnt, on disk: days and weeks that a controller which starts again need not learn anew.

Of one owner, written whole by rename, once a minute at most: so much is lost where it is killed. With every figure at
its longest:

    a pool  1,008 + 144 levels, 5 x 360 errors, 120 x (1 + 5) ahead: 3,672 figures of at most 25 bytes = 92 KB
    a file  64 pools x 92 KB = 5.9 MB, under MAX_BYTES (test_the_largest_memory_fits)

A file that is none, is another version's, or says what cannot be (a profile of another length, a negative rate) is a
warning and an empty memory. JSON has no NaN and no infinity.
Neighbours: `kept` has what was asked for, `decisions.autoscaling.forecast_memory` says what of this holds after a gap.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from functions.controller.autoscaling.forecast_wire import KeptPool
from functions.controller.local.ledger import replace_file
from functions.decisions.autoscaling.forecast_memory import Memory
from functions.decisions.autoscaling.forecast_methods import METHODS

VERSION = 1
MAX_BYTES = 8 * 1024 * 1024
MAX_POOLS = 64  # a machine has ports for 20 replicas
KEEP_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class _Version(msgspec.Struct, frozen=True):
    version: int = 0
    methods: tuple[str, ...] = ()


class _Kept(msgspec.Struct, frozen=True):
    version: int
    methods: tuple[str, ...]  # whose scores and predictions are kept, in this order
    pools: dict[str, KeptPool]


class Forecasts:
    """By pool; one owner."""

    def __init__(self, path: Path) -> None:
        """Blocks."""
        self._path = path
        self._kept_s = float("-inf")
        self.known = _read(path)

    def keep(self, memories: Mapping[str, Memory], now_s: float) -> None:
        """Blocks, where the last time was a minute ago. `now_s` is monotonic. A disk that is full is a warning."""
        if now_s - self._kept_s < KEEP_EVERY_S or not memories:
            return
        self._kept_s = now_s
        pools = {name: KeptPool.of(memory) for name, memory in list(memories.items())[:MAX_POOLS]}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(_Kept(VERSION, METHODS, pools)))
        except OSError as error:
            _log.warning(
                "%s: forecasts are not kept: %s; a controller that starts again learns anew", self._path, error
            )


def _read(path: Path) -> dict[str, Memory]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return _decoded(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # msgspec's errors and Unicode's are ValueErrors
        _log.warning("%s: the forecasts are learnt anew: %s", path, error)
        return {}


def _decoded(content: bytes) -> dict[str, Memory]:
    if len(content) > MAX_BYTES:
        raise ValueError(f"over {MAX_BYTES} bytes")
    head = msgspec.json.decode(content, type=_Version)
    if (head.version, head.methods) != (VERSION, METHODS):
        raise ValueError(f"version {head.version} with {', '.join(head.methods) or 'no methods'}, not {VERSION}")
    pools = msgspec.json.decode(content, type=_Kept).pools
    if len(pools) > MAX_POOLS:
        raise ValueError(f"over {MAX_POOLS} pools")
    return {name: pool.memory() for name, pool in pools.items()}
