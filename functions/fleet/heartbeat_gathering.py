"""Gathering of heartbeats on the bus: the lines that an agent sends, and the script that publishes many at once.

5,000 replicas and 40 gateways would make 200,000 messages a second, each with a list of adapters that has not changed
(docs/measurements/README.md). An agent therefore sends a pulse if that suffices, and the server gathers lines and
publishes them as one message:

    up to 100 heartbeats a second       each is published on arrival
    beyond                              together, every 20 ms
    with a change (a phase, adapters)   immediately, with all held lines; a new pace alone does not count as a change,
                                        because every replica has one every few seconds

Held lines are published with the next heartbeat of any replica; under load that is within milliseconds. These keys
are neither replicated nor written to disk: heartbeats repeat every second. A server without a replica's whole
heartbeat requests it from the agent, which sends it next.

Gateways of the previous version listen to single whole heartbeats (`ALONE_CHANNEL`). While any does, the server
reports it, and agents send whole ones there as well.
"""

from typing import NamedTuple

import msgspec

from functions.fleet.heartbeat import WHOLE_INTERVAL_S, Heartbeat, encode, is_pulse_enough, pulse_of

ALONE_CHANNEL = "shoal:heartbeats"
# the same channel; listeners by pattern are not counted as gateways of the previous version
ALONE_PATTERN = "shoal:heartbeat[s]"
GATHERED_CHANNEL = "shoal:heartbeats-gathered"
KEY_PREFIX = "shoal:replica:"
HELD_KEY, PACE_KEY = "shoal:heartbeats-held", "shoal:heartbeats-pace"

GATHER = """
-- KEYS  1 the replica's last whole heartbeat  2 held lines  3 "second, heartbeats in it, time of the last publication"
-- ARGV  1 line  2 1 if it is whole, else 0  3 1 to publish immediately  4 seconds to store a whole one
--       5 channel of gathered lines  6 channel of single heartbeats
-- returns 1 if a whole heartbeat of the replica is known, and the number of listeners to single ones
local PER_SECOND, GATHER_US, MOST_LINES, HELD_BYTES = 100, 20000, 128, 8192
redis.set_repl(redis.REPL_NONE)
local known = 1
if ARGV[2] == '1' then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[4])
else
  known = redis.call('EXPIRE', KEYS[1], ARGV[4])
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local second, count, published = string.match(redis.call('GET', KEYS[3]) or '', '^(%d+) (%d+) (%d+)$')
count = second == time[1] and tonumber(count) or 0
published = tonumber(published or '0')
local waited = now - published
local due = ARGV[3] == '1' or #ARGV[1] > HELD_BYTES or count < PER_SECOND or waited >= GATHER_US or waited < 0
if due then
  local held = redis.call('LRANGE', KEYS[2], 0, -1)
  if #held > 0 then redis.call('DEL', KEYS[2]) end
  held[#held + 1] = ARGV[1]
  redis.call('PUBLISH', ARGV[5], table.concat(held, '\\n'))
  published = now
else
  if redis.call('RPUSH', KEYS[2], ARGV[1]) >= MOST_LINES then
    redis.call('PUBLISH', ARGV[5], table.concat(redis.call('LRANGE', KEYS[2], 0, -1), '\\n'))
    redis.call('DEL', KEYS[2])
    published = now
  end
end
redis.call('SET', KEYS[3], time[1] .. ' ' .. (count + 1) .. ' ' .. string.format('%.0f', published), 'EX', 60)
local alone = redis.call('PUBSUB', 'NUMSUB', ARGV[6])[2]
if alone > 0 and ARGV[2] == '1' then redis.call('PUBLISH', ARGV[6], ARGV[1]) end
return {known, alone}
"""


class BusLine(NamedTuple):
    text: bytes
    is_whole: bool
    at_once: bool


def _is_urgent(former: Heartbeat, heartbeat: Heartbeat) -> bool:
    """Return True if the two heartbeats differ in any field other than those of a pulse and `pace`."""
    return not is_pulse_enough(msgspec.structs.replace(former, pace=heartbeat.pace), heartbeat)


class ReplicaLines:
    """Choose what one replica sends: whole heartbeats where they are needed, pulses between them."""

    def __init__(self) -> None:
        self._whole: Heartbeat | None = None  # the last one that the bus has; None: the next one is whole
        self._single = False  # True if a gateway listens to single heartbeats

    def next_line(self, heartbeat: Heartbeat) -> BusLine:
        whole = self._whole
        is_changed = whole is None or not is_pulse_enough(whole, heartbeat)
        is_old = whole is not None and heartbeat.sent_unix_s - whole.sent_unix_s >= WHOLE_INTERVAL_S
        if is_changed or is_old or self._single:
            return BusLine(encode(heartbeat), True, whole is None or _is_urgent(whole, heartbeat))
        return BusLine(pulse_of(heartbeat), False, False)

    def mark_sent(self, line: BusLine, heartbeat: Heartbeat, *, is_known: bool, single_listeners: int) -> None:
        """Record that the bus has the line. `is_known`: the bus has a whole heartbeat of this replica, so that a pulse
        may be next; with any `single_listeners` all lines must be whole."""
        if line.is_whole:
            self._whole = heartbeat
        if not is_known:
            self._whole = None
        self._single = single_listeners > 0

    def mark_lost(self) -> None:
        """Make the next line a whole heartbeat: the bus may not have the last line, or may be a new server."""
        self._whole = None
