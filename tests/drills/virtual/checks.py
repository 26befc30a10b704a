"""Invariants of a run, one function each, named as in the reference on reliability. Each yields its violations.

I1  settlement     every admitted request ends once and is settled once; nothing stays reserved; usage is the
                   engine's if the engine ended it; bills add up
I2  first token    after a client has a byte there is no other attempt; before it at most the allowed number, and no
                   replica twice
I3  one outcome    each client gets one well-formed end, or left; a text is one engine's, of one version
I5  bounded        nothing is left over: connections, places, tickets, tasks, KV blocks
I6  fail static    no client is told that there is no snapshot, whether the bus or the controller is away
I7  recovery       after the last fault every gateway answers again; no request waits longer than its band allows
I9  one version    a session stays with its version while that exists
--  detection      nothing goes to a replica that reported not ready or has been silent for too long
--  no mistakes    nothing raised, nothing was logged as an error
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from functions.decisions.quota.dimensions import GPU, INPUT, KV, OUTPUT, UNITS
from functions.fleet.heartbeat import SILENCE_LIMIT_S
from functions.telemetry.trace_row import TraceRow
from tests.drills.virtual import answers_seen
from tests.drills.virtual.answers_seen import told_usage
from tests.drills.virtual.clients import Outcome
from tests.drills.virtual.fleet import Fleet
from tests.drills.virtual.gateway_node import LIMITS, GatewayNode
from tests.drills.virtual.platform import MAX_ATTEMPTS, MAX_WAIT_S, SESSION_TTL_S
from tests.gateway.rig import DIGEST_V2

_SWEEP_S = 0.25
_SLACK_S = 0.01
_FOREVER = {"bus", "publish_evidence", "publish_pins", "follow_pins", "quota leases", "sweep", "usage"}
_PINS_TOLD_S = 4.0  # half a second until pins are published, and a bus that may take three

Breaches = Iterator[str]
Rows = dict[str, list[TraceRow]]


def all_breaches(fleet: Fleet) -> list[str]:
    rows = _rows(fleet)
    checks: tuple[tuple[str, Callable[[Fleet, Rows], Breaches]], ...] = (
        ("no mistakes", _mistakes),
        ("I1 settlement", _settlement),
        ("I1 usage", _usage),
        ("I1 bills", _bills),
        ("I2 first token", _attempts),
        ("I3 one outcome", _outcomes),
        ("I3 text", _texts),
        ("I5 bounded", _leftovers),
        ("I6 fail static", _static),
        ("I7 starvation", _starvation),
        ("I7 recovery", _recovery),
        ("I9 one version", _versions),
        ("detection", _detection),
    )
    return [f"{name}: {breach}" for name, check in checks for breach in check(fleet, rows)]


def _rows(fleet: Fleet) -> Rows:
    """Return the settlement records by request."""
    found: dict[str, list[TraceRow]] = defaultdict(list)
    for gateway in fleet.all_gateways():
        for traced in gateway.gateway.services.traces.recent:
            row = traced.row()
            found[row.request_id].append(row)
    return dict(found)


def _mistakes(fleet: Fleet, rows: Rows) -> Breaches:
    yield from fleet.witness.errors


def _lived(fleet: Fleet) -> list[GatewayNode]:
    """Return the gateways that were not killed: a killed process settles nothing, and its leases expire."""
    return [gateway for gateway in fleet.all_gateways() if gateway not in fleet.crashed]


def _settlement(fleet: Fleet, rows: Rows) -> Breaches:
    witness, lived = fleet.witness, {gateway.node for gateway in _lived(fleet)}
    for (node, request_id), times in witness.opened.items():
        if times != 1:
            yield f"{request_id} was opened {times} times"
        if node in lived and witness.closed[node, request_id] != 1:
            yield f"{request_id} was closed {witness.closed[node, request_id]} times at {node}"
        if node in lived and len(rows.get(request_id, ())) != 1:
            yield f"{request_id} has {len(rows.get(request_id, ()))} trace rows"
    for node, reservation in witness.reservations:
        if node in lived and reservation.state != "settled":
            yield f"a reservation at {node} is {reservation.state} still"
    charges = Counter(settled.reservation for settled in witness.settled if settled.first)
    for times in charges.values():
        if times != 1:
            yield f"a reservation was settled {times} times"
    yield from _conservation(fleet, lived)
    for gateway in _lived(fleet):
        for key, account in gateway.gateway.services.quotas.accounts.items():
            if account.in_flight:
                yield f"{gateway.name} counts {account.in_flight} requests of {key} in flight"


def _conservation(fleet: Fleet, lived: set[Any]) -> Breaches:
    """Check that the total spent of an account is what its requests were charged: nothing stays reserved."""
    charged: dict[Any, list[int]] = defaultdict(lambda: [0] * 5)
    for settled in fleet.witness.settled:
        if settled.first:
            for account in settled.accounts:
                of_account = charged[account]
                for dimension, figure in zip((INPUT, OUTPUT, KV, GPU), settled.figures, strict=True):
                    of_account[dimension] += int(figure * UNITS[dimension])
    for account, taken in fleet.witness.taken.items():
        if fleet.witness.account_nodes[account] in lived and taken[INPUT:] != charged[account][INPUT:]:
            yield f"an account was charged {charged[account][INPUT:]} and has lost {taken[INPUT:]}"


def _usage(fleet: Fleet, rows: Rows) -> Breaches:
    """Check that the engine's count of an answer it ended is in the trace row and in what the client received."""
    counted: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for replica in fleet.replicas.values():
        for log in replica.usage_logs:
            for line in log.read_text().splitlines() if log.exists() else ():
                request_id, *figures = line.split()
                counted[request_id].add((int(figures[0]), int(figures[1]), int(figures[2])))
    for request_id, found in rows.items():
        row = found[0]
        settled = (row.prompt_tokens, row.cached_tokens, row.completion_tokens)
        if row.status == 200 and settled not in counted[request_id]:
            yield f"{request_id} is settled with {settled}, engines counted {sorted(counted[request_id])}"
    for outcome in fleet.outcomes:
        told = told_usage(outcome)
        if told is not None and told not in counted[outcome.plan.request_id]:
            yield f"{outcome.plan.request_id} was told {told}"
    yield from fleet.witness.usage.overcharged()


def _bills(fleet: Fleet, rows: Rows) -> Breaches:
    """Check that the registry counted what was charged, to the token, except for a second of each killed gateway."""
    bills = fleet.bills
    bills.heals = True
    for gateway in fleet.gateways:
        gateway.account.close()  # with usage that predecessors at its place left or could not report
    yield from bills.differences()


def _attempts(fleet: Fleet, rows: Rows) -> Breaches:
    witness = fleet.witness
    tried: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for begun in witness.begun:
        tried[begun.request_id].append((begun.pool, begun.replica))
        first_s = witness.first_bytes_s.get(begun.request_id)
        if first_s is not None and begun.at_s > first_s:
            yield f"{begun.request_id} was tried at {begun.replica} after its client had a byte"
    for at_s, _, request_id, replica in witness.sent:
        first_s = witness.first_bytes_s.get(request_id)
        if first_s is not None and at_s > first_s:
            yield f"{request_id} was sent to {replica} after its client had a byte"
    for (request_id, replica), times in Counter((each[2], each[3]) for each in witness.sent).items():
        if times > 2 and not _was_cold(rows.get(request_id, [])):  # a stale connection is redialed once
            yield f"{request_id} was sent to {replica} {times} times"
    for request_id, places in tried.items():
        by_pool = defaultdict(list)
        for pool, replica in places:
            by_pool[pool].append(replica)
        for pool, replicas in by_pool.items():
            if len(replicas) != len(set(replicas)) and not _was_cold(rows.get(request_id, [])):
                yield f"{request_id} was tried twice on one replica of {pool}: {replicas}"
            if len(replicas) > MAX_ATTEMPTS + int(fleet.policy.hedge):
                yield f"{request_id} had {len(replicas)} attempts in {pool}"


def _was_cold(rows: list[TraceRow]) -> bool:
    """Return whether a replica had to load the adapter: it is then tried again once it has it."""
    return any("adapter_missing" in row.error for row in rows) or not rows


def _outcomes(fleet: Fleet, rows: Rows) -> Breaches:
    return answers_seen.outcomes(fleet)


def _texts(fleet: Fleet, rows: Rows) -> Breaches:
    return answers_seen.texts(fleet)


def _leftovers(fleet: Fleet, rows: Rows) -> Breaches:
    for node in fleet.gateways:
        gateway = node.gateway
        counts = {
            "exchanges": len(gateway.services.open_requests),
            "client connections": len(gateway.services.connections),
            "places at replicas": len(gateway.services.router.load.in_flight),
            "dispatched": sum(
                headroom.admission.gate.running for headroom in gateway.services.admission._pool_queues.values()
            ),
            "waiting": gateway.services.admission.waiting,
            "idle upstreams": sum(map(len, gateway.services.upstreams._idle.values())),
            "waits for adapters": gateway.services.adapter_loads.waiting
            if gateway.services.adapter_loads is not None
            else 0,
            "asks for quota": len(node.leases._waiting),
            "connections of the server": len(node._state.connections),
            "ASGI tasks": len(node._state.tasks),
        }
        for what, count in counts.items():
            if count:
                yield f"{node.name} has {count} {what} left"
        names = {task.get_name() for task in gateway.services.tasks._tasks}
        if names != _FOREVER:
            yield f"{node.name} runs {sorted(names)}"
    for end in fleet.network.ends:
        yield f"a connection of {end.node} to {end.peer.node} is open still"
    for replica in fleet.replicas.values():
        if replica.parts is not None and replica.state == "ready":
            blocks = replica.parts.engine.core.scheduler.blocks
            if not replica.is_idle or blocks.free_blocks != blocks.num_blocks:
                yield f"{replica.name} works on for nobody, or keeps KV blocks"
    for node in fleet.retired:
        if node not in fleet.crashed and len(node.gateway.services.open_requests):
            yield f"{node.name} went with {len(node.gateway.services.open_requests)} requests open"


def _static(fleet: Fleet, rows: Rows) -> Breaches:
    for outcome in fleet.outcomes:
        if outcome.ending == "refused" and b'"not_ready"' in outcome.body:
            yield f"{outcome.plan.request_id} was told that there is no snapshot"


def _starvation(fleet: Fleet, rows: Rows) -> Breaches:
    pools = 2 if fleet.policy.fallback else 1
    plans = [outcome.plan for outcome in fleet.outcomes if not outcome.plan.uploads_slowly]
    deadlines_ms = {plan.request_id: plan.deadline_ms for plan in plans}
    for found in rows.values():
        row = found[0]
        bound_s = pools * (MAX_WAIT_S[row.class_] + LIMITS.cold_wait_s + 2 * _SWEEP_S)
        if row.queue_ms > bound_s * 1000:
            yield f"{row.request_id} ({row.class_}) waited for {row.queue_ms:.0f} ms"
        asked_ms = deadlines_ms.get(row.request_id)
        if asked_ms is not None and row.total_ms > asked_ms + (_SWEEP_S + _SLACK_S) * 1000:
            yield f"{row.request_id} took {row.total_ms:.0f} ms, its deadline was {asked_ms} ms"
        if row.total_ms > (LIMITS.answer_s + _SWEEP_S + _SLACK_S) * 1000:
            yield f"{row.request_id} took {row.total_ms:.0f} ms"


def _recovery(fleet: Fleet, rows: Rows) -> Breaches:
    for place in range(len(fleet.gateways)):
        asked = [probe for probe in fleet.probes if probe.plan.request_id.startswith(f"probe{place}-")]
        if not any(probe.ending == "streamed" for probe in asked):
            heard = [(probe.ending, probe.status, probe.body[:120]) for probe in asked]
            yield f"g{place} does not answer again: {heard}"


def _versions(fleet: Fleet, rows: Rows) -> Breaches:
    sessions: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in fleet.outcomes:
        answered = outcome.status == 200 and outcome.first_s is not None
        if answered and outcome.session is not None and outcome.plan.model == "acme/bot":
            sessions[outcome.session].append(outcome)
    for session, outcomes in sessions.items():
        for former, later in pairwise(outcomes):
            yield from _change(fleet, rows, session, former, later)


def _change(fleet: Fleet, rows: Rows, session: str, former: Outcome, later: Outcome) -> Breaches:
    """Compare two consecutive answers of a session and report a change of version without a reason."""
    epochs = [row.snapshot_epoch for each in (former, later) for row in rows.get(each.plan.request_id, ())]
    if len(epochs) < 2 or former.first_s is None or "x-shoal-degraded" in {**former.headers, **later.headers}:
        return
    digests = [each.headers.get("x-shoal-digest") for each in (former, later)]
    if digests[0] == digests[1] or later.began_s - former.first_s > SESSION_TTL_S - 1.0:
        return
    in_rollout = [epoch in (2, 3) for epoch in epochs]
    is_same_gateway = former.gateway is later.gateway
    is_told = not fleet.bus_was_troubled and later.began_s - former.first_s > _PINS_TOLD_S and in_rollout[0]
    was_rolled_back = digests[0] == DIGEST_V2 and not fleet.policy.promoted and fleet.epoch == 4
    if in_rollout[1] and (is_same_gateway or is_told) and not was_rolled_back:
        yield f"session {session} changes from {digests[0]} to {digests[1]} in epochs {epochs} at {later.gateway.name}"


def _detection(fleet: Fleet, rows: Rows) -> Breaches:
    for begun in fleet.witness.begun:
        if begun.last_phase != "ready":
            yield f"{begun.request_id} went to {begun.replica}, which said that it is {begun.last_phase}"
        silent_s = begun.at_s - begun.last_beat_s
        if silent_s > SILENCE_LIMIT_S + _SWEEP_S + _SLACK_S and not begun.is_silent:
            yield f"{begun.request_id} went to {begun.replica}, silent for {silent_s:.1f} s"
