"""Which addresses may be connected to, in every form that one address can take."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

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
    "2001:0:808:808::1",  # Teredo
    "2001:db8::1",
    "2002:808:808::1",  # 6to4, whatever address it contains
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
CARRIERS = ["::ffff:{}", "64:ff9b::{:x}:{:x}"]
SPECIAL = [  # IANA's registries of special-purpose addresses, multicast and what is reserved
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/128", "::1/128"),
    *("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32"),
    *("2001:2::/48", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7"),
    *("fe80::/10", "fec0::/10", "ff00::/8"),
]


def carried(form: str, inner: str) -> str:
    number = int(ip_address(inner))
    return form.format(inner) if "{}" in form else form.format(number >> 16, number & 0xFFFF)


@pytest.mark.parametrize("text", PRIVATE)
def test_non_public_addresses_are_refused(text: str) -> None:
    assert not is_allowed(ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"])
def test_public_unicast_is_allowed(text: str) -> None:
    assert is_allowed(ip_address(text))


@pytest.mark.parametrize("form", CARRIERS)
@pytest.mark.parametrize("inner", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "168.63.129.16", "224.0.0.1"])
def test_embedded_address_decides_for_its_form(form: str, inner: str) -> None:
    assert not is_allowed(ip_address(carried(form, inner)))
    assert is_allowed(ip_address(carried(form, "8.8.8.8")))


def test_worked_example() -> None:
    """64:ff9b::7f00:1 is NAT64 for 127.0.0.1."""
    assert not is_allowed(ip_address("64:ff9b::7f00:1"))
    assert not is_allowed(ip_address("64:ff9b:1::7f00:1"))  # the local-use prefix leads into the local network


@pytest.mark.parametrize("text", SPECIAL)
def test_special_networks_are_refused_from_the_first_address_to_the_last(text: str) -> None:
    network = ip_network(text)
    assert not any(is_allowed(network[index]) for index in (0, network.num_addresses // 2, -1))


@pytest.mark.parametrize("text", ["9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.32.0.0"])
@pytest.mark.parametrize("form", ["{}", *CARRIERS])
def test_neighbours_of_special_networks_are_allowed(text: str, form: str) -> None:
    assert is_allowed(ip_address(carried(form, text)))


@pytest.mark.parametrize("text", ["2000::", "2001:200::", "2001:db9::", "2003::", "3ffe::1"])
def test_neighbours_of_special_networks_of_ipv6_are_allowed(text: str) -> None:
    assert is_allowed(ip_address(text))


@given(st.ip_addresses())
def test_python_private_addresses_are_never_allowed(address: IPv4Address | IPv6Address) -> None:
    assert not is_allowed(address) or not address.is_private or address in ip_network("::ffff:0:0/96")


def test_operator_network_is_the_only_exception() -> None:
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
    with pytest.raises(ArtifactRefused, match="which is not an IP address"):
        resolve("models.example.com", 443, lambda host, port: ["0x7f.1"], ())


def test_a_host_that_does_not_resolve_is_tried_again_later() -> None:
    def resolver(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    with pytest.raises(StoreUnavailable, match="cannot be resolved: Name or service not known"):
        resolve("models.example.com", 443, resolver, ())
