"""Regions of a fleet: installations that share policies and pepper, by name, with their addresses.

    {"a": {"registry_url": "https://registry.a.example.com", "gateway_url": "https://a.example.com"}, "b": {…}}

All regions read the same file, and each ignores its own entry. The file may change while they run: it is a ConfigMap,
or written by `shoal up --region`.
"""

from pathlib import Path
from typing import Annotated

import msgspec

REGION_PATTERN = r"[a-z0-9](?:[a-z0-9-]{0,14}[a-z0-9])?"
MAX_REGIONS = 16
_FILE_MAX_BYTES = 64 * 1024

RegionName = Annotated[str, msgspec.Meta(pattern=rf"\A{REGION_PATTERN}\Z")]
Url = Annotated[str, msgspec.Meta(pattern=r"\Ahttps?://[^\s/]+\Z", max_length=300)]


class RegionAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    registry_url: Url  # URL of its registry for other regions
    gateway_url: Url | None = None  # URL of its gateway for the front
    port_base: int | None = None  # local fleets only


class RegionsUnreadable(Exception):
    """The file is missing or wrong; the message says what is expected."""


_DECODER = msgspec.json.Decoder(dict[RegionName, RegionAddress])


def read_regions(file: Path) -> dict[str, RegionAddress]:
    try:
        with file.open("rb") as opened:
            regions = _DECODER.decode(opened.read(_FILE_MAX_BYTES))
    except OSError as error:
        raise RegionsUnreadable(f"{file} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        expected = '{"<region>": {"registry_url": "https://…"}}'
        raise RegionsUnreadable(f"{file} is not {expected}: {error}") from error
    if len(regions) > MAX_REGIONS:
        raise RegionsUnreadable(f"{file} names {len(regions)} regions; allowed: at most {MAX_REGIONS}")
    return regions
