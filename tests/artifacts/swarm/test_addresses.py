"""Addresses that are accepted as peers."""

import pytest

from functions.artifacts.swarm.addresses import AddressRefused, check_address, is_loopback


@pytest.mark.parametrize("address", ["10.1.2.3:8500", "192.168.0.1:1", "[fd00::1]:65535", "8.8.8.8:443"])
def test_plain_addresses_are_believed(address: str) -> None:
    assert check_address(address, loopback_allowed=False) == address


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:080",
        "10.0.0.1:8500/x",
        "10.0.0.1:8500\n",
        "http://10.0.0.1:8500",
        "user@10.0.0.1:8500",
        "localhost:8500",
        "metadata.internal:80",
        "169.254.169.254:80",
        "[fe80::1]:80",
        "[::ffff:169.254.169.254]:80",
        "[::ffff:7f00:1]:80",
        "[::ffff:127.0.0.1]:80",
        "0.0.0.0:80",
        "[::]:80",
        "224.0.0.1:80",
        "[ff02::1]:80",
        "255.255.255.255:80",
        "168.63.129.16:80",
        "100.100.100.200:80",
        "[fd00:ec2::254]:80",
        "[fd00:ec2::23]:80",
        "[fd20:ce::254]:80",
        "[fd00:c1::a9fe:a9fe]:80",
        "[fd00:42::42]:80",
        "[2002:a9fe:a9fe::]:80",
        "[2001:0:808:808::1]:80",
        "[fec0::1]:80",
        "[100::1]:80",
        "0.1.2.3:80",
        "[64:ff9b::a9fe:a9fe]:80",
        "240.0.0.1:80",
        "010.0.0.1:80",
        "10.1:80",
        "2130706433:80",
        "0x7f000001:80",
        "[fd00:0:0:0:0:0:0:1]:80",
        "[fd00::1%25eth0]:80",
        "1" * 100 + ":80",
    ],
)
def test_others_are_refused(address: str) -> None:
    with pytest.raises(AddressRefused):
        check_address(address, loopback_allowed=True)


def test_loopback_peers_are_accepted_only_on_loopback() -> None:
    for address in ("127.0.0.1:8500", "127.8.8.8:1", "[::1]:8500"):
        assert check_address(address, loopback_allowed=True) == address
        with pytest.raises(AddressRefused, match="loopback"):
            check_address(address, loopback_allowed=False)
    assert is_loopback("127.0.0.1")
    assert is_loopback("[::1]")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("testclient")
