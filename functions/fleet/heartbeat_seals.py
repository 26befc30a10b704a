"""Seals on heartbeats: a message authentication code that binds each to its replica and its time.

    {"replica_id": "r-1", …}  →  {"replica_id": "r-1", …,"seal":"<32 hex>"}
    ["r-1", …]                →  ["r-1", …,"<32 hex>"]

The key is derived from the agents' secret and the replica's id; the code covers everything before it. Readers of
version 0.1 ignore the field, which is last in both forms.

If seals are required, heartbeats without one are rejected. Until then, for one version, a heartbeat may lack a seal,
but a seal that is present must be right. Heartbeats older than MAX_AGE_S are rejected. Within that time sequence
numbers grow (`functions.fleet.view`), so a replayed heartbeat has no effect.

The address to which gateways send prompts is never a host name, and never the node's own or its metadata service's.
It must be in `pod_networks`, by default the private ranges. Nodes and Services have private addresses as well. To
accept only pods, set POD_CIDRS to the pod networks; clusters whose pods have public addresses must set it.
"""

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from functions.artifacts.swarm.addresses import can_be_a_node
from functions.fleet.heartbeat import Heartbeat, HeartbeatInvalid, Pulse
from functions.fleet.role_credentials import Bearer, RoleCredentials, current_secret

MAX_AGE_S = 120.0  # includes clock differences between nodes
_HEX = 32
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PRIVATE_NETWORKS = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"  # the fourth is what clouds use
_IN_OBJECT, _IN_ARRAY = b',"seal":"', b',"'
_MAX_KEYS = 20_000


class HeartbeatRefused(HeartbeatInvalid):
    """The message is a heartbeat, but its sender is not authenticated."""


def sealed(line: bytes, replica_id: str, secret: Bearer) -> bytes:
    """Return the JSON line of a heartbeat or pulse with its seal added at the end."""
    text, end = line[:-1] + (_IN_OBJECT if line.startswith(b"{") else _IN_ARRAY), line[-1:]
    return text + _code(_key(current_secret(secret), replica_id), text) + b'"' + end


class SealChecker:
    """Check seals. Owned by one event loop. `loopback`: True if all run on one machine, whose replicas are at
    127.0.0.1."""

    def __init__(
        self,
        credentials: RoleCredentials,
        *,
        required: bool,
        loopback: bool,
        pod_networks: tuple[Network, ...],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._credentials = credentials
        self._required = required
        self._loopback = loopback
        self._pod_networks = pod_networks
        self._wall_clock = wall_clock
        self._secrets: tuple[str, ...] = ()
        self._keys: dict[str, bytes] = {}  # keys of replicas whose seal was right
        self._told_s = float("-inf")
        self.refused_total = 0

    def check(self, line: bytes, said: Heartbeat | Pulse) -> None:
        """Raise HeartbeatRefused if the seal is wrong, or missing while seals are required, if a sealed line's time
        differs from this clock by more than MAX_AGE_S, or if a heartbeat's host is not a pod address."""
        text, code = line[: -_HEX - 2], line[-_HEX - 2 : -2]
        if text.endswith(_IN_OBJECT if line.startswith(b"{") else _IN_ARRAY) and len(code) == _HEX:
            self._check_code(said.replica_id, text, code)
            age_s = self._wall_clock() - said.sent_unix_s
            if not abs(age_s) <= MAX_AGE_S:
                raise self._refused(
                    said, f"its time is {age_s:.0f} s before this clock's; allowed: up to {MAX_AGE_S:.0f} s"
                )
        elif self._required:
            raise self._refused(said, "it has no seal")
        if isinstance(said, Heartbeat) and not self._is_a_pods(said.host):
            raise self._refused(said, f"{said.host} is not a pod address (setting POD_CIDRS)")

    def should_log(self, now_s: float) -> bool:
        """Return True at most once a minute: a wrong credential can cause thousands of refusals a second."""
        if now_s - self._told_s < 60.0:
            return False
        self._told_s = now_s
        return True

    def _check_code(self, replica_id: str, text: bytes, code: bytes) -> None:
        secrets = self._credentials.accepted("heartbeat")
        if secrets != self._secrets:
            self._secrets = secrets
            self._keys.clear()
        known = self._keys.get(replica_id)
        if known is not None and hmac.compare_digest(_code(known, text), code):
            return
        for secret in secrets:
            key = _key(secret, replica_id)
            if hmac.compare_digest(_code(key, text), code):
                if len(self._keys) >= _MAX_KEYS:
                    self._keys.clear()
                self._keys[replica_id] = key
                return
        self.refused_total += 1
        raise HeartbeatRefused(f"the seal of {replica_id} is wrong: another process sent it, or its credentials differ")

    def _is_a_pods(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return not self._required or (self._loopback and host == "localhost")
        if address.is_loopback:
            return self._loopback
        return can_be_a_node(address) and any(
            address.version == each.version and address in each for each in self._pod_networks
        )

    def _refused(self, said: Heartbeat | Pulse, why: str) -> HeartbeatRefused:
        self.refused_total += 1
        return HeartbeatRefused(f"{said.replica_id}: {why}")


def networks_of(text: str) -> tuple[Network, ...]:
    """Parse a comma-separated list of networks; ValueError names the invalid one."""
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip())


def is_one_machine(bus_url: str) -> bool:
    """Return True if the bus URL's host is a loopback address: then replicas are reached by loopback, too."""
    try:
        host = urlsplit(bus_url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(secret: str, replica_id: str) -> bytes:
    return hmac.digest(secret.encode(), b"shoal: heartbeats of " + replica_id.encode(), hashlib.sha256)


def _code(key: bytes, text: bytes) -> bytes:
    """Return the keyed BLAKE2b code of the text in hexadecimal: 1.3 µs for a pulse, compared with 4 µs for OpenSSL's
    HMAC."""
    return hashlib.blake2b(text, key=key, digest_size=_HEX // 2).hexdigest().encode()
