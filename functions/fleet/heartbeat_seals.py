"""Seals on heartbeats: a message authentication code that binds each to its replica and its moment.

    {"replica_id": "r-1", …}  →  {"replica_id": "r-1", …,"seal":"<32 hex>"}
    ["r-1", …]                →  ["r-1", …,"<32 hex>"]

The key follows from the agents' secret and the replica's id; the code is over all that stands before it. Readers of
version 0.1 ignore the field, which is last in both forms.

Where seals are required nothing is believed without one; until then, for one version, a heartbeat may have none, and
one that has must be right. What is older than MAX_AGE_S is refused, and
within that time sequence numbers grow (`functions.fleet.view`), so a heartbeat that was recorded says nothing twice.
The address to which gateways send prompts is never a name, and never one of the node itself or its metadata; it lies in
`pod_networks`, by default the private ranges. Nodes and Services have private addresses as well: whoever wants none but
pods' names the pods' networks (the settings POD_CIDRS), as clusters have to whose pods have public ones.
"""

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from functions.artifacts.swarm.addresses import can_be_a_node
from functions.fleet.heartbeat import Heartbeat, HeartbeatInvalid, Pulse
from functions.fleet.role_credentials import Bearer, RoleCredentials, now

MAX_AGE_S = 120.0  # with the differences of nodes' clocks
_HEX = 32
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PRIVATE_NETWORKS = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"  # the fourth: as clouds use it
_IN_OBJECT, _IN_ARRAY = b',"seal":"', b',"'
_MAX_KEYS = 20_000


class HeartbeatRefused(HeartbeatInvalid):
    """It is a heartbeat, and nobody knows whose."""


def sealed(line: bytes, replica_id: str, secret: Bearer) -> bytes:
    """The line of a heartbeat or pulse, with its seal."""
    text, end = line[:-1] + (_IN_OBJECT if line.startswith(b"{") else _IN_ARRAY), line[-1:]
    return text + _code(_key(now(secret), replica_id), text) + b'"' + end


class SealChecker:
    """Owned by one event loop. `loopback`: whether all run on one machine, whose replicas are at 127.0.0.1."""

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
        self._keys: dict[str, bytes] = {}  # of replicas that have shown that they have them
        self._told_s = float("-inf")
        self.refused_total = 0

    def check(self, line: bytes, said: Heartbeat | Pulse) -> None:
        """HeartbeatRefused for what the replica did not say, or said long ago."""
        text, code = line[: -_HEX - 2], line[-_HEX - 2 : -2]
        if text.endswith(_IN_OBJECT if line.startswith(b"{") else _IN_ARRAY) and len(code) == _HEX:
            self._check_code(said.replica_id, text, code)
            age_s = self._wall_clock() - said.sent_unix_s
            if not abs(age_s) <= MAX_AGE_S:
                raise self._refused(said, f"it was said {age_s:.0f} s ago, by its clock and ours")
        elif self._required:
            raise self._refused(said, "it has no seal")
        if isinstance(said, Heartbeat) and not self._is_a_pods(said.host):
            raise self._refused(said, f"{said.host} is no pod's address (the setting POD_CIDRS)")

    def has_to_be_told(self, now_s: float) -> bool:
        """Once a minute: with a wrong credential somewhere there are thousands a second."""
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
        raise HeartbeatRefused(f"the seal of {replica_id} is wrong: another sent it, or has other credentials")

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
    """Of a list with commas; ValueError says which is none."""
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip())


def is_one_machine(bus_url: str) -> bool:
    """Whether the bus is reached by loopback: then replicas are, too."""
    try:
        host = urlsplit(bus_url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(secret: str, replica_id: str) -> bytes:
    return hmac.digest(secret.encode(), b"shoal: heartbeats of " + replica_id.encode(), hashlib.sha256)


def _code(key: bytes, text: bytes) -> bytes:
    """Keyed BLAKE2b: 1.3 µs for a pulse, where HMAC by OpenSSL takes 4."""
    return hashlib.blake2b(text, key=key, digest_size=_HEX // 2).hexdigest().encode()
