"""KV block transfer between two simulated engines, by the contract of vLLM 0.32's NixlConnector.

    prefill  `kv_transfer_params: {do_remote_decode: true}`; the answer carries the parameters that decode needs. The
             prompt's blocks stay held until they are read or their lease ends (`kv_lease_duration`, 30 s)
    decode   the same parameters: the blocks are read from `remote_host:remote_port`, and only the prompt's last token
             is computed; its `cached_tokens` are those that the prefill had cached
    failure  the blocks are gone or the engine is unreachable: `kv_load_failure_policy` recompute computes the prompt
             here, fail answers 500

    transfer_s = tokens not cached here x kv bytes a token / bytes a second

Blocks are freed when they are read: a second reader finds none. (vLLM does not detect a second read, which then
returns another request's blocks.) The side channel is the engine's own HTTP port. The contract was recorded from vLLM
0.32 for CPU with NIXL 1.5.1 over TCP.

Neighbours: `scheduler` stores held blocks and starts sequences whose blocks have arrived; `generation_routes` calls
this module.
"""

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import msgspec

from functions.api.netloc import netloc
from functions.engines.sim.refusals import EngineRefusal

BYTES_PER_GIGABIT = 125_000_000
HANDSHAKE_TIMEOUT_S = 5.0
READ_PATH = "/sim/kv_blocks"
_OFFLOADING = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector"})


class KvTransferExtra(msgspec.Struct, frozen=True):
    kv_lease_duration: float = 30.0
    cpu_bytes_to_use: float = 0.0


class KvTransferConfig(msgspec.Struct, frozen=True):
    """Supported part of vLLM's `--kv-transfer-config`; without a connector there are no transfers."""

    kv_connector: str = ""
    kv_role: str = "kv_both"
    kv_load_failure_policy: str = "fail"
    kv_connector_extra_config: KvTransferExtra = KvTransferExtra()

    @property
    def is_on(self) -> bool:
        return bool(self.kv_connector) and not self._offloads

    @property
    def host_bytes(self) -> float:
        """Bytes of host memory for the KV blocks of an offloading connector; 0 without one."""
        return self.kv_connector_extra_config.cpu_bytes_to_use if self._offloads else 0.0

    @property
    def _offloads(self) -> bool:
        return self.kv_connector in _OFFLOADING

    @property
    def recomputes(self) -> bool:
        return self.kv_load_failure_policy == "recompute"


@dataclass(frozen=True, slots=True)
class KvLink:
    """Source address and speed of block transfers."""

    config: KvTransferConfig
    bytes_per_token: int
    gigabits_per_s: float
    host: str
    port: int

    def transfer_s(self, tokens: int) -> float:
        return max(0, tokens) * self.bytes_per_token / (self.gigabits_per_s * BYTES_PER_GIGABIT)


@dataclass(frozen=True, slots=True)
class Received:
    """KV blocks of a prompt that a decoding engine received."""

    tokens: int  # tokens whose KV blocks arrived; 0: the engine computes them itself
    cached_tokens: int = 0  # the part of `tokens` that the prefill had cached


NOTHING_RECEIVED = Received(0)


class KvTransfers:
    """One engine's side of KV transfers."""

    def __init__(self, link: KvLink) -> None:
        self.link = link
        self.engine_id = str(uuid4())

    def choose_hold_name(self, params: dict[str, Any] | None, request_id: str) -> str:
        """Return a new name under which to hold a prefill's blocks; empty if the request is no prefill or transfers are
        off."""
        is_prefill = self.link.config.is_on and bool(params) and bool((params or {}).get("do_remote_decode"))
        return f"{request_id}-{uuid4().hex[:8]}" if is_prefill else ""

    def transfer_params(self, name: str, blocks: list[int], tokens: int, cached_tokens: int) -> dict[str, Any]:
        """Return the `kv_transfer_params` of a prefill's answer, with which the decoding engine requests its blocks."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [blocks],
            "remote_engine_id": self.engine_id,
            "remote_request_id": name,
            "remote_host": self.link.host,
            "remote_port": self.link.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": cached_tokens,
        }

    async def receive(self, params: dict[str, Any] | None, prompt_tokens: int) -> Received:
        """Request the prompt's blocks from the other engine, if the params say so. Return NOTHING_RECEIVED if that
        fails and the prompt may be recomputed, else raise EngineRefusal."""
        if not self.link.config.is_on or not params or not params.get("do_remote_prefill"):
            return NOTHING_RECEIVED
        try:
            tokens, cached = await _read(params)
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, TypeError, ValueError) as error:
            if self.link.config.recomputes:
                return NOTHING_RECEIVED
            raise EngineRefusal(
                "KV load failure: the blocks could not be read", kind="InternalServerError", status=500
            ) from error
        return Received(min(tokens, prompt_tokens), min(cached, prompt_tokens))


async def _read(params: dict[str, Any]) -> tuple[int, int]:
    """Request the prompt's blocks from the other engine, which then releases them. Return the number of tokens whose
    blocks it sent, and how many tokens it had cached (from `params`)."""
    base = f"http://{netloc(str(params['remote_host']), int(params['remote_port']))}"
    asking = {"engine_id": params["remote_engine_id"], "request_id": params["remote_request_id"]}
    async with httpx.AsyncClient(timeout=HANDSHAKE_TIMEOUT_S, trust_env=False) as client:
        response = await client.post(f"{base}{READ_PATH}", json=asking)
    response.raise_for_status()
    return int(response.json()["tokens"]), int(params.get("remote_prefill_cached_tokens") or 0)
