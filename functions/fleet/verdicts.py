"""Verdicts of the controller about replicas and nodes: told to the registry, and by it to gateways.

    controller ── PUT /v1/fleet/verdicts ──► registry: metrics, `GET /v1/fleet` ── bus: nodes alone ──► gateways

All of it each time: nobody needs to remember what was said before, and what is not said again for VERDICTS_FOR_S is
forgotten. It is told at once when something changes, and again every TELL_AGAIN_S. Gateways get the nodes that are not
ready (`functions.decisions.health.failure_domains`); what becomes of slow and faulty replicas they see from their
heartbeats.

It crosses a trust border, so decoding is strict and bounded: a message on the bus that is none changes nothing.
"""

from typing import Annotated, Literal

import msgspec

from functions.decisions.health.failure_domains import NodeTrouble
from functions.fleet.heartbeat import Count, Name

VERDICTS_PATH = "/v1/fleet/verdicts"
VERDICTS_MAX_BYTES = 2 * 1024 * 1024
VERDICTS_FOR_S = 60.0
TELL_AGAIN_S = 15.0
MAX_NODES = 1000  # not ready; where more of them are, the first by name are told, and hardly anybody believes it
MAX_REPLICAS = 1000
WHY_MAX_CHARS = 400
_NOTICE_MAX_BYTES = 512 * 1024

NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=r"\A[A-Za-z0-9._-]+\Z")]
Nodes = Annotated[dict[NodeName, NodeTrouble], msgspec.Meta(max_length=MAX_NODES)]
Text = Annotated[str, msgspec.Meta(max_length=WHY_MAX_CHARS)]


class ReplicaTrouble(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a replica that is slow by itself, or whose accelerator has failed."""

    pool: Name
    replica_id: Name
    what: Literal["slow", "accelerator"]
    state: Literal["restarting", "held", "out"]
    why: Text = ""
    held: Text = ""  # why it is not restarted yet
    node: Annotated[str, msgspec.Meta(max_length=253)] = ""


class Verdicts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: Nodes = {}
    replicas: Annotated[tuple[ReplicaTrouble, ...], msgspec.Meta(max_length=MAX_REPLICAS)] = ()
    slow_restarts: Annotated[dict[Name, Count], msgspec.Meta(max_length=4096)] = {}
    """By pool, since the controller began."""


class NodeNotice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What gateways are told."""

    nodes: Nodes = {}


class VerdictsInvalid(Exception):
    """Not a notice of nodes; drop it."""


def notice_of(verdicts: Verdicts) -> bytes:
    return msgspec.json.encode(NodeNotice(verdicts.nodes))


def decode_notice(message: bytes) -> NodeNotice:
    """Raises VerdictsInvalid."""
    if len(message) > _NOTICE_MAX_BYTES:
        raise VerdictsInvalid(f"{len(message)} bytes is over the limit of {_NOTICE_MAX_BYTES}")
    try:
        return msgspec.json.decode(message, type=NodeNotice)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise VerdictsInvalid(str(error)) from error
