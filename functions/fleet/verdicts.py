"""Verdicts of the controller about replicas and nodes: sent to the registry, which forwards nodes to gateways.

    controller ── PUT /v1/fleet/verdicts ──► registry: metrics, `GET /v1/fleet` ── bus: nodes only ──► gateways

Each message is complete and replaces the previous one. Verdicts that are not repeated for VERDICTS_FOR_S expire. They
are sent when something changes, and every TELL_AGAIN_S. Gateways receive the nodes that are not ready
(`functions.decisions.health.failure_domains`); they learn about slow and faulty replicas from heartbeats.

Messages cross a trust boundary, so decoding is strict and bounded: an invalid message on the bus changes nothing.
"""

from typing import Annotated, Literal

import msgspec

from functions.decisions.health.failure_domains import NodeTrouble
from functions.fleet.heartbeat import Count, Name

VERDICTS_PATH = "/v1/fleet/verdicts"
VERDICTS_MAX_BYTES = 2 * 1024 * 1024
VERDICTS_FOR_S = 60.0
TELL_AGAIN_S = 15.0
MAX_NODES = 1000  # not ready; if there are more, the first by name are sent, and so many are hardly credible
MAX_REPLICAS = 1000
WHY_MAX_CHARS = 400
_NOTICE_MAX_BYTES = 512 * 1024

NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"\A[A-Za-z0-9._-]+\Z")]
Nodes = Annotated[dict[NodeName, NodeTrouble], msgspec.Meta(max_length=MAX_NODES)]
Text = Annotated[str, msgspec.Meta(max_length=WHY_MAX_CHARS)]


class ReplicaTrouble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica that is slow by itself, or whose accelerator has failed."""

    pool: Name
    replica_id: Name
    what: Literal["slow", "accelerator"]
    state: Literal["restarting", "held", "out"]
    why: Text = ""
    held: Text = ""  # reason why it is not restarted yet
    node: Annotated[str, msgspec.Meta(max_length=253)] = ""


class Verdicts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Nodes = {}
    replicas: Annotated[tuple[ReplicaTrouble, ...], msgspec.Meta(max_length=MAX_REPLICAS)] = ()
    slow_restarts: Annotated[dict[Name, Count], msgspec.Meta(max_length=4096)] = {}
    """Restarts of slow replicas by pool, since the controller started."""


class NodeNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that are not ready, as sent to gateways."""

    nodes: Nodes = {}


class VerdictsInvalid(Exception):
    """The message is not a node notice; drop it."""


def notice_of(verdicts: Verdicts) -> bytes:
    return msgspec.json.encode(NodeNotice(verdicts.nodes))


def decode_notice(message: bytes) -> NodeNotice:
    """Decode a notice of nodes that are not ready; VerdictsInvalid if it is none."""
    if len(message) > _NOTICE_MAX_BYTES:
        raise VerdictsInvalid(f"{len(message)} bytes is over the limit of {_NOTICE_MAX_BYTES}")
    try:
        return msgspec.json.decode(message, type=NodeNotice)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise VerdictsInvalid(str(error)) from error
