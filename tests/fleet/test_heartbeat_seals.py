"""Seals on heartbeats: a replica's own heartbeats are accepted, and forged ones are rejected.

The defect: any writer on the bus could publish another address for a replica, and gateways sent prompts there.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.fleet.heartbeat import Heartbeat, HeartbeatInvalid, Pulse, decode_line, encode, pulse_of
from functions.fleet.heartbeat_seals import (
    MAX_AGE_S,
    PRIVATE_NETWORKS,
    HeartbeatRefused,
    SealChecker,
    is_one_machine,
    networks_of,
    sealed,
)
from functions.fleet.role_credentials import RoleCredentials, derived, document
from tests.fleet.builders import beat

TOKEN, SECRET = "the-token", derived("the-token", "heartbeat")
NOW_S = 1_000_000.0
GATEWAY = RoleCredentials(document("gateway", [TOKEN]).decode())


def said(replica: str = "r-1", host: str = "10.0.0.7", age_s: float = 0.0) -> Heartbeat:
    return beat(replica_id=replica, host=host, sent_unix_s=NOW_S - age_s)


def checker(
    *,
    required: bool = True,
    loopback: bool = False,
    credentials: RoleCredentials = GATEWAY,
    pod_cidrs: str = PRIVATE_NETWORKS,
) -> SealChecker:
    networks = networks_of(pod_cidrs)
    return SealChecker(
        credentials, required=required, loopback=loopback, pod_networks=networks, wall_clock=lambda: NOW_S
    )


def check_line(seals: SealChecker, line: bytes) -> Heartbeat | Pulse:
    found = decode_line(line)
    seals.check(line, found)
    return found


@pytest.mark.parametrize("form", [encode, pulse_of])
def test_sealed_heartbeat_is_accepted_and_readable_by_older_releases(form: object) -> None:
    heartbeat = said()
    line = (encode if form is encode else pulse_of)(heartbeat)
    with_seal = sealed(line, "r-1", SECRET)
    assert check_line(checker(), with_seal) == decode_line(line) == decode_line(with_seal)
    assert len(with_seal) - len(line) <= 43


@pytest.mark.parametrize("form", [encode, pulse_of])
def test_forged_heartbeat_is_rejected(form: object) -> None:
    line = (encode if form is encode else pulse_of)(said())
    of_another = sealed(line, "r-2", SECRET)  # each replica has a separate key
    of_nobody = sealed(line, "r-1", "guessed")
    cut = sealed(line, "r-1", SECRET)[:-12] + sealed(line, "r-1", SECRET)[-2:]
    for wrong in (line, of_another, of_nobody, cut):
        with pytest.raises(HeartbeatInvalid):
            check_line(checker(), wrong)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_changed_byte_invalidates_the_seal(at: int, byte: int) -> None:
    line = sealed(encode(said()), "r-1", SECRET)
    at %= len(line)
    changed = line[:at] + bytes([byte]) + line[at + 1 :]
    if changed != line:
        with pytest.raises(HeartbeatInvalid):
            check_line(checker(), changed)


def test_earlier_valid_seal_does_not_cover_later_heartbeats() -> None:
    seals = checker()
    check_line(seals, sealed(encode(said()), "r-1", SECRET))
    for wrong in (encode(said()), sealed(encode(said(host="10.6.6.6")), "r-1", "guessed")):
        with pytest.raises(HeartbeatRefused):
            check_line(seals, wrong)
    assert seals.refused_total == 2


def test_replayed_heartbeat_is_rejected() -> None:
    check_line(checker(), sealed(encode(said(age_s=MAX_AGE_S - 1)), "r-1", SECRET))
    for age_s in (MAX_AGE_S + 1, -MAX_AGE_S - 1, float("nan")):
        heartbeat = msgspec.structs.replace(said(), sent_unix_s=NOW_S - age_s)
        with pytest.raises(HeartbeatInvalid):
            check_line(checker(), sealed(encode(heartbeat), "r-1", SECRET))


@pytest.mark.parametrize(
    ("host", "on_a_cluster", "on_one_machine"),
    [
        ("10.0.0.7", True, True),
        ("100.64.3.4", True, True),
        ("203.0.113.9", False, False),
        ("127.0.0.1", False, True),
        ("localhost", False, True),
        ("169.254.169.254", False, False),
        ("0.0.0.0", False, False),
        ("224.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("metadata.google.internal", False, False),
        ("evil.example.com", False, False),
        ("2130706433", False, False),
        ("127.1", False, False),
        ("fd00:10:244::7", True, True),
        ("::1", False, True),
        ("2a00:1450:4001:81b::200e", False, False),
        ("fe80::1", False, False),
        ("fd00:ec2::254", False, False),
        ("fd00:ec2::23", False, False),
        ("fd20:ce::254", False, False),
        ("::ffff:10.0.0.7", False, False),
        ("64:ff9b::a00:7", False, False),
        ("2002:a00:7::1", False, False),
        ("::", False, False),
        ("ff02::1", False, False),
        ("100.100.100.200", False, False),
        ("168.63.129.16", False, False),
    ],
)
def test_prompts_go_to_pods(host: str, on_a_cluster: bool, on_one_machine: bool) -> None:
    line = sealed(encode(said(host=host)), "r-1", SECRET)
    for loopback, believed in ((False, on_a_cluster), (True, on_one_machine)):
        if believed:
            check_line(checker(loopback=loopback), line)
        else:
            with pytest.raises(HeartbeatRefused, match="is not a pod address"):
                check_line(checker(loopback=loopback), line)


def test_only_addresses_in_the_pod_networks_are_accepted() -> None:
    named = checker(pod_cidrs="10.244.0.0/16, 203.0.113.0/24")
    for host in ("10.244.7.7", "203.0.113.9"):
        check_line(named, sealed(encode(said(host=host)), "r-1", SECRET))
    six = checker(pod_cidrs="2600:1f14:e00:1000::/56")
    check_line(six, sealed(encode(said(host="2600:1f14:e00:1007::9")), "r-1", SECRET))
    for host in ("2600:1f14:e00:1100::9", "fd00:10:96::1"):
        with pytest.raises(HeartbeatRefused, match="POD_CIDRS"):
            check_line(six, sealed(encode(said(host=host)), "r-1", SECRET))
    for host in ("192.168.1.10", "10.96.0.1", "203.0.114.9", "127.0.0.1"):
        with pytest.raises(HeartbeatRefused, match="POD_CIDRS"):
            check_line(named, sealed(encode(said(host=host)), "r-1", SECRET))


@pytest.mark.parametrize("text", ["10.0.0.1/8", "pods", "10.0.0.0/33"])
def test_invalid_network_is_reported_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"does not appear|has host bits"):
        networks_of(text)


def test_missing_seal_may_be_allowed_but_a_wrong_one_never() -> None:
    before = checker(required=False, credentials=RoleCredentials(TOKEN))
    check_line(before, encode(said()))
    check_line(before, sealed(encode(said()), "r-1", SECRET))
    with pytest.raises(HeartbeatRefused):
        check_line(before, sealed(encode(said()), "r-1", "guessed"))
    with pytest.raises(HeartbeatRefused):
        check_line(before, encode(said(host="169.254.169.254")))


def test_both_tokens_of_a_rotation_are_believed_and_afterwards_one() -> None:
    line_of_old, line_of_new = (sealed(encode(said()), "r-1", derived(token, "heartbeat")) for token in ("old", "new"))
    seals = checker(credentials=RoleCredentials(document("gateway", ["old", "new"]).decode()))
    for line in (line_of_old, line_of_new, line_of_old):
        check_line(seals, line)
    after = checker(credentials=RoleCredentials(document("gateway", ["new"]).decode()))
    check_line(after, line_of_new)
    with pytest.raises(HeartbeatRefused):
        check_line(after, line_of_old)


def test_a_wrong_credential_somewhere_does_not_fill_the_log() -> None:
    seals = checker()
    assert [seals.should_log(now_s) for now_s in (0.0, 1.0, 59.0, 61.0, 62.0)] == [True, False, False, True, False]


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("valkey://127.0.0.1:8446/0", True),
        ("valkey://localhost:1/0", True),
        ("valkey://[::1]:1/0", True),
        ("valkey://bus.shoal.svc:6379/0", False),
        ("valkey+sentinel://bus-0:26379,bus-1:26379/shoal/0", False),
    ],
)
def test_loopback_bus_means_one_machine(url: str, here: bool) -> None:
    assert is_one_machine(url) == here
