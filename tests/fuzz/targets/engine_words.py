"""Other output of an engine: its metrics page and its KV events."""

import contextlib

import msgspec

from functions.engines.errors import EngineGarbled
from functions.engines.metrics import parse_metrics
from functions.replica.kv_events.source import EventsInvalid, decode
from tests.fuzz.inputs import Input

DICTIONARY = (
    "vllm:num_requests_running 1\n",
    "vllm:num_requests_waiting 0\n",
    'vllm:cache_config_info{num_gpu_blocks="8",block_size="16"} 1\n',
    'vllm:lora_requests_info{max_lora="2",running_lora_adapters="a,b"} 1\n',
    "# TYPE vllm:kv_cache_usage_perc gauge\n",
    "NaN",
    "+Inf",
    "1e999",
    '[1.0,[["BlockStored",[1],null,[1,2],16,null]]]',
    '{"type":"BlockRemoved","block_hashes":[1]}',
    '["AllBlocksCleared"]',
)


def check(data: bytes) -> None:
    given = Input(data)
    if given.byte() % 2:
        _events(given.rest())
    else:
        try:
            parse_metrics(given.rest().decode("utf-8", "replace"))
        except EngineGarbled as garbled:
            assert str(garbled)


def _events(data: bytes) -> None:
    """Read the data as MessagePack, and also as JSON converted to MessagePack."""
    documents = [data]
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        documents.append(msgspec.msgpack.encode(msgspec.json.decode(data)))
    for document in documents:
        try:
            decode(document)
        except EventsInvalid as invalid:
            assert str(invalid)
