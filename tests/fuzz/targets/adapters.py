"""Untrusted adapters: every safetensors header that shoal accepts is accepted by the safetensors library as well.

The first byte selects a header and the size of its data, or a PEFT configuration.
"""

import tempfile
from functools import cache
from pathlib import Path

import safetensors

from functions.artifacts.adapter_config import CONFIG_NAME, check_config, read_config
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.safetensors_header import parse_header
from tests.fuzz.inputs import Input

DICTIONARY = (
    '{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}',
    '"__metadata__":{"format":"pt"}',
    '"dtype":',
    '"shape":',
    '"data_offsets":',
    '"F64"',
    '"BF16"',
    "[]",
    "[0]",
    "1099511627776",
    '{"peft_type":"LORA","r":8,"lora_alpha":16,"target_modules":["q_proj"]}',
    '"rank_pattern":{"q":4}',
    '"alpha_pattern":{"q":4.0}',
    '"use_dora":true',
    '"bias":"none"',
    '"init_lora_weights":"eva"',
    '"modules_to_save":["score"]',
    "1e999",
    "NaN",
)


def check(data: bytes) -> None:
    given = Input(data)
    kind = given.byte()
    if kind % 2:
        _configuration(given.rest())
    else:
        _header(given.rest(), kind // 2)


def _header(header: bytes, data_bytes: int) -> None:
    try:
        tensors = parse_header(header, data_bytes=data_bytes)
    except ArtifactRefused:
        return
    assert sum(tensor.size_bytes for tensor in tensors) == data_bytes
    file = len(header).to_bytes(8, "little") + header + bytes(data_bytes)
    known = {name for name, _ in safetensors.deserialize(file)}
    assert known == {tensor.name for tensor in tensors}


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="shoal-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def _configuration(document: bytes) -> None:
    (_folder() / CONFIG_NAME).write_bytes(document)
    try:
        config = read_config(_folder())
        check_config(config, max_rank=64, base=None)
    except ArtifactRefused as refused:
        assert str(refused)
    else:
        assert config.peft_type == "LORA" and config.modules
