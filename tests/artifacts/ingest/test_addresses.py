"""Which addresses may be connected to, in every form that one address can take."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.artifacts.errors import ArtifactRefused, StoreUnavailable
from functions.artifacts.ingest.addresses import MAX_ADDRESSES, is_allowed, resolve

PRIVATE = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",  # carrier-grade NAT, and one cloud's metadata
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",  # metadata
    "172.16.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:0:8.8.8.8",
    "100::1",
    "2001:db8::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%lo",
    "2606:4700::1%lo",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]
CARRIERS = ["::ffff:{}", "2002:{:x}:{:x}::1", "64:ff9b::{:x}:{:x}"]


def carried(form: str, inner: str) -> str:
    number = int(ip_address(inner))
    return form.format(inner) if "{}" in form else form.format(number >> 16, number & 0xFFFF)


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_the_public_internet_is_refused(text: str) -> None:
    assert not is_allowed(ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"])
def test_public_unicast_is_allowed(text: str) -> None:
    assert is_allowed(ip_address(text))


@pytest.mark.parametrize("form", CARRIERS)
@pytest.mark.parametrize("inner", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "168.63.129.16", "224.0.0.1"])
def test_a_form_that_carries_an_address_is_judged_by_it(form: str, inner: str) -> None:
    assert not is_allowed(ip_address(carried(form, inner)))
    assert is_allowed(ip_address(carried(form, "8.8.8.8")))


def test_worked_example() -> None:
    """64:ff9b::7f00:1 is NAT64 for 127.0.0.1."""
    assert not is_allowed(ip_address("64:ff9b::7f00:1"))
    assert not is_allowed(ip_address("64:ff9b:1::7f00:1"))  # the local-use prefix leads into the own network


def test_teredo_is_judged_by_its_client() -> None:
    server, client = int(ip_address("8.8.8.8")), int(ip_address("127.0.0.1")) ^ 0xFFFF_FFFF
    text = f"2001:0:{server >> 16:x}:{server & 0xFFFF:x}:0:0:{client >> 16:x}:{client & 0xFFFF:x}"
    assert not is_allowed(ip_address(text))


def test_a_network_of_the_operators_is_an_exception_and_no_more() -> None:
    networks = (ip_network("10.20.0.0/16"), ip_network("fd00:1::/64"))
    assert is_allowed(ip_address("10.20.3.4"), networks)
    assert is_allowed(ip_address("fd00:1::7"), networks)
    assert is_allowed(ip_address("::ffff:10.20.3.4"), networks)
    assert not is_allowed(ip_address("10.21.3.4"), networks)
    assert not is_allowed(ip_address("127.0.0.1"), networks)


@given(st.ip_addresses(v=4))
def test_mapping_never_changes_the_answer(address: object) -> None:
    assert is_allowed(ip_address(f"::ffff:{address}")) == is_allowed(ip_address(str(address)))


def test_one_bad_address_among_good_ones_refuses_the_host() -> None:
    with pytest.raises(ArtifactRefused, match=r"models\.example\.com resolves to 10\.0\.0\.1, which is not"):
        resolve("models.example.com", 443, lambda host, port: ["8.8.8.8", "10.0.0.1"], ())


def test_addresses_are_those_of_one_answer() -> None:
    found = resolve("models.example.com", 443, lambda host, port: ["8.8.8.8", "2606:4700::1"], ())
    assert [str(address) for address in found] == ["8.8.8.8", "2606:4700::1"]


@pytest.mark.parametrize("answer", [[], ["8.8.8.8"] * (MAX_ADDRESSES + 1)])
def test_a_host_without_addresses_or_with_too_many(answer: list[str]) -> None:
    with pytest.raises(StoreUnavailable, match="addresses"):
        resolve("models.example.com", 443, lambda host, port: answer, ())


def test_a_resolver_that_answers_nonsense() -> None:
    with pytest.raises(ArtifactRefused, match="which is no address"):
        resolve("models.example.com", 443, lambda host, port: ["0x7f.1"], ())


def test_a_host_that_does_not_resolve_is_tried_again_later() -> None:
    def resolver(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    with pytest.raises(StoreUnavailable, match="cannot be resolved: Name or service not known"):
        resolve("models.example.com", 443, resolver, ())
