"""Command line of the simulated engine: vLLM's flags with vLLM's meaning, and `--sim-*` for the simulator's own.

vLLM flags that have no effect in a simulator are accepted with a warning, so the same InferenceService arguments
start either engine.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from functions.engines.sim.faults import Faults, Malformed
from functions.engines.sim.kv_events import KvEventsConfig
from functions.engines.sim.kv_transfer import KvLink, KvTransferConfig
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.model import model_config

_DEFAULT_MODEL_LEN_TOKENS = 8192
_DEFAULT_KEEP_ALIVE_S = 5
_MAX_DRAFT_TOKENS = 64
_LONE_FLAGS = ("--enforce-eager", "--disable-log-stats", "--disable-log-requests", "--trust-remote-code")
_SIZES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}


class SpeculativeConfig(msgspec.Struct, frozen=True):
    """Part of vLLM's speculative config that has an effect: nothing is drafted; acceptance is drawn at random."""

    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=0, le=_MAX_DRAFT_TOKENS)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    host: str
    port: int
    model: str
    served_model_names: tuple[str, ...]
    limits: EngineLimits
    costs: StepCosts
    faults: Faults
    seed: int
    startup_delay_s: float
    wake_s: float
    """Time to bring the weights of a sleeping engine back."""
    keep_alive_s: int
    """VLLM_HTTP_TIMEOUT_KEEP_ALIVE: time after which idle connections are closed."""
    shutdown_timeout_s: float
    enable_lora: bool
    lora_routes: bool
    """True if VLLM_ALLOW_RUNTIME_LORA_UPDATING enables the adapter routes."""
    dev_routes: bool
    """True if VLLM_SERVER_DEV_MODE enables the sleep routes."""
    static_adapters: tuple[tuple[str, str], ...]
    request_id_headers: bool
    prompt_token_details: bool
    force_usage: bool
    can_call_tools: bool
    task: Literal["generate", "embed", "classify", "score"]
    """Task of the model: `--runner pooling` with `--sim-task`."""
    embedding_dimensions: int
    kv_events: KvEventsConfig
    kv_link: KvLink
    usage_log: Path | None
    """File that gets one line for each finished answer (`usage_log`)."""
    ignored: tuple[str, ...]


def parse_size(text: str) -> int:
    """Parse vLLM's human-readable integers: 4096, 8k (8000), 8K (8192)."""
    unit = _SIZES.get(text[-1:])
    return int(float(text[:-1]) * unit) if unit else int(text)


def read_settings(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    flags, ignored = _parser().parse_known_args(_normalised(arguments))
    return Settings(
        host=flags.host,
        port=flags.port,
        model=flags.model or "sim",
        served_model_names=tuple(flags.served_model_name),
        limits=_limits(flags),
        costs=_costs(flags),
        faults=_faults(flags),
        seed=flags.sim_seed if flags.sim_seed is not None else flags.seed,
        startup_delay_s=flags.sim_startup_delay_s,
        wake_s=flags.sim_wake_ms / 1e3,
        keep_alive_s=int(environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", _DEFAULT_KEEP_ALIVE_S)),
        shutdown_timeout_s=flags.shutdown_timeout,
        enable_lora=flags.enable_lora,
        lora_routes=environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "").lower() in ("1", "true"),
        dev_routes=environ.get("VLLM_SERVER_DEV_MODE", "") == "1",
        static_adapters=tuple(_static_adapter(text) for text in flags.lora_modules),
        request_id_headers=flags.enable_request_id_headers,
        prompt_token_details=flags.enable_prompt_tokens_details,
        force_usage=flags.enable_force_include_usage,
        can_call_tools=flags.enable_auto_tool_choice and flags.tool_call_parser is not None,
        task=flags.sim_task if flags.runner == "pooling" else "generate",
        embedding_dimensions=flags.sim_embedding_dimensions,
        kv_events=flags.kv_events_config,
        kv_link=_kv_link(flags),
        usage_log=flags.sim_usage_log,
        ignored=tuple(ignored),
    )


def _normalised(arguments: Sequence[str]) -> list[str]:
    """Replace underscores in option names: vLLM accepts --max_model_len for --max-model-len."""
    return [_dashed(argument) if argument.startswith("--") else argument for argument in arguments]


def _dashed(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m functions.engines.sim", description=__doc__, allow_abbrev=False)
    _add_server_flags(parser)
    _add_engine_flags(parser)
    _add_simulator_flags(parser)
    return parser


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model")
    parser.add_argument("--served-model-name", nargs="+", default=[])
    parser.add_argument("--runner", choices=["auto", "generate", "pooling"], default="auto")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0, metavar="S")
    parser.add_argument("--enable-request-id-headers", action=switch, default=False)
    parser.add_argument("--enable-prompt-tokens-details", action=switch, default=False)
    parser.add_argument("--enable-force-include-usage", action=switch, default=False)
    parser.add_argument("--enable-auto-tool-choice", action=switch, default=False)
    parser.add_argument("--tool-call-parser")


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--max-model-len", type=parse_size)
    parser.add_argument("--max-num-seqs", type=parse_size, default=256)
    parser.add_argument("--max-num-batched-tokens", type=parse_size, default=2048)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--num-gpu-blocks-override", type=int, metavar="BLOCKS")
    parser.add_argument("--enable-prefix-caching", action=switch, default=True)
    parser.add_argument("--enable-lora", action=switch, default=False)
    parser.add_argument("--max-loras", type=int, default=1)
    parser.add_argument("--max-cpu-loras", type=int)
    parser.add_argument("--max-lora-rank", type=int, default=16)
    parser.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH")
    parser.add_argument("--max-num-queued-reqs", type=int)
    parser.add_argument("--max-num-queued-tokens", type=parse_size)
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    parser.add_argument("--kv-events-config", type=_kv_events_config, default=KvEventsConfig(), metavar="JSON")
    parser.add_argument("--kv-transfer-config", type=_kv_transfer_config, default=KvTransferConfig(), metavar="JSON")
    parser.add_argument("--kv-offloading-size", type=float, metavar="GIB", help="host memory for KV blocks")
    parser.add_argument("--kv-offloading-backend", choices=["native", "lmcache"], default="native")
    parser.add_argument("--speculative-config", type=_speculative_config, default=SpeculativeConfig(), metavar="JSON")
    parser.add_argument("--enable-sleep-mode", action=switch, default=False, help="accepted; frees no memory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="accepted; no effect")
    for flag in _LONE_FLAGS:
        parser.add_argument(flag, action="store_true", help="accepted; no effect")


def _add_simulator_flags(parser: argparse.ArgumentParser) -> None:
    costs = StepCosts()
    group = parser.add_argument_group("simulator")
    group.add_argument("--sim-step-ms", type=float, default=costs.overhead_s * 1e3, help="base duration of every step")
    group.add_argument("--sim-prefill-us-per-token", type=float, default=costs.prefill_s_per_token * 1e6)
    group.add_argument("--sim-decode-us-per-seq", type=float, default=costs.decode_s_per_seq * 1e6)
    group.add_argument(
        "--sim-adapter-load-ms",
        type=float,
        default=costs.adapter_load_s * 1e3,
        help="time to load an adapter from disk",
    )
    group.add_argument("--sim-adapter-activate-ms", type=float, default=costs.adapter_activate_s * 1e3)
    group.add_argument("--sim-kv-bytes-per-token", type=int, default=131_072, help="size of a token's KV blocks")
    group.add_argument("--sim-kv-gigabits-per-s", type=float, default=100.0, help="bandwidth of a KV transfer")
    group.add_argument(
        "--sim-kv-host-gigabytes-per-s",
        type=float,
        default=25.0,
        help="bandwidth of reloading KV blocks from host memory",
    )
    group.add_argument("--sim-draft-acceptance-ratio", type=float, default=0.6, help="share of accepted draft tokens")
    group.add_argument("--sim-jitter-ratio", type=float, default=costs.jitter_ratio)
    group.add_argument("--sim-seed", type=int, help="default: --seed")
    group.add_argument("--sim-startup-delay-s", type=float, default=0.0, help="time until the listening server answers")
    group.add_argument("--sim-wake-ms", type=float, default=0.0, help="time to bring back a sleeping engine's weights")
    group.add_argument(
        "--sim-faults", type=json.loads, default={}, help="fault switches as JSON, as for POST /sim/faults"
    )
    group.add_argument(
        "--sim-task", choices=["embed", "classify", "score"], default="embed", help="task of a --runner pooling"
    )
    group.add_argument(
        "--sim-usage-log", type=Path, metavar="FILE", help="file that gets one line for each finished answer"
    )
    group.add_argument("--sim-embedding-dimensions", type=int, default=64)
    group.add_argument("--sim-malformed", choices=[kind.value for kind in Malformed])


def _limits(flags: argparse.Namespace) -> EngineLimits:
    max_model_len_tokens = flags.max_model_len or _context_of(flags.model)
    default_blocks = max(8192, 2 * -(-max_model_len_tokens // flags.block_size))
    return EngineLimits(
        max_model_len_tokens=max_model_len_tokens,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        block_size_tokens=flags.block_size,
        num_kv_blocks=flags.num_gpu_blocks_override or default_blocks,
        enable_prefix_caching=flags.enable_prefix_caching,
        max_loras=flags.max_loras if flags.enable_lora else 0,
        max_cpu_loras=(flags.max_cpu_loras or flags.max_loras) if flags.enable_lora else 0,
        max_lora_rank=flags.max_lora_rank,
        max_num_queued_reqs=flags.max_num_queued_reqs,
        max_num_queued_tokens=flags.max_num_queued_tokens,
        num_host_blocks=_host_blocks(flags),
        host_reload_s_per_token=flags.sim_kv_bytes_per_token / (flags.sim_kv_host_gigabytes_per_s * 1e9),
        draft_tokens=flags.speculative_config.num_speculative_tokens,
        draft_acceptance_ratio=flags.sim_draft_acceptance_ratio,
        kv_lease_s=flags.kv_transfer_config.kv_connector_extra_config.kv_lease_duration,
        priority_scheduling=flags.scheduling_policy == "priority",
    )


def _host_blocks(flags: argparse.Namespace) -> int:
    """Return the number of host memory blocks. `--kv-offloading-size` replaces any other connector, as in vLLM."""
    transfer: KvTransferConfig = flags.kv_transfer_config
    size_bytes = transfer.host_bytes if flags.kv_offloading_size is None else flags.kv_offloading_size * 2**30
    return int(size_bytes / (flags.sim_kv_bytes_per_token * flags.block_size))


def _costs(flags: argparse.Namespace) -> StepCosts:
    return StepCosts(
        overhead_s=flags.sim_step_ms / 1e3,
        prefill_s_per_token=flags.sim_prefill_us_per_token / 1e6,
        decode_s_per_seq=flags.sim_decode_us_per_seq / 1e6,
        adapter_load_s=flags.sim_adapter_load_ms / 1e3,
        adapter_activate_s=flags.sim_adapter_activate_ms / 1e3,
        jitter_ratio=flags.sim_jitter_ratio,
    )


def _kv_link(flags: argparse.Namespace) -> KvLink:
    config = KvTransferConfig() if flags.kv_offloading_size is not None else flags.kv_transfer_config
    return KvLink(config, flags.sim_kv_bytes_per_token, flags.sim_kv_gigabits_per_s, flags.host, flags.port)


def _faults(flags: argparse.Namespace) -> Faults:
    # A model may have its own faults in its config.json, to simulate a base that is worse than the one before.
    switches: dict[str, Any] = {**model_config(flags.model or "").get("shoal_faults", {}), **dict(flags.sim_faults)}
    if flags.sim_malformed:
        switches["malformed"] = flags.sim_malformed
    return Faults.model_validate(switches)


def _context_of(model: str | None) -> int:
    """Return the context window in the model's config.json, or the default."""
    return int(model_config(model or "").get("max_position_embeddings", _DEFAULT_MODEL_LEN_TOKENS))


def _kv_events_config(text: str) -> KvEventsConfig:
    return msgspec.json.decode(text, type=KvEventsConfig)  # argparse reports the ValueError


def _speculative_config(text: str) -> SpeculativeConfig:
    return msgspec.json.decode(text, type=SpeculativeConfig)


def _kv_transfer_config(text: str) -> KvTransferConfig:
    return msgspec.json.decode(text, type=KvTransferConfig)


def _static_adapter(text: str) -> tuple[str, str]:
    """Parse `name=path` or {"name": ..., "path": ...}."""
    if text.startswith("{"):
        module = json.loads(text)
        return str(module["name"]), str(module["path"])
    name, _, path = text.partition("=")
    return name, path
