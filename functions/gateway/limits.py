"""Bounds of the gateway, each with its reason. Frozen; one instance per process.

The clocks here exist because no ASGI server has them all: uvicorn waits for ever for a header, a body, or a client
that stopped reading.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    # What a request may weigh
    body_bytes: int = 4 * 1024 * 1024  # eight times a 131,072-token prompt of English
    head_bytes: int = 16 * 1024  # request line and headers together
    header_count: int = 64
    session_chars: int = 512  # of a session's id, which is only ever hashed
    json_depth: int = 64  # deeper is an attack on recursive parsers, never a request
    json_values: int = 100_000  # objects, arrays and keys: 128 tools with schemas are 50,000; parsing these takes 40 ms
    messages: int = 2048
    prompts: int = 128  # per completion request
    tools: int = 128
    choices: int = 8  # `n`: the engine's own cap is 16,384
    stop_strings: int = 4
    logit_bias_entries: int = 300
    pooling_inputs: int = 2048  # texts to embed, classify or score in one request; OpenAI's own bound

    # What an answer may weigh
    event_bytes: int = 1024 * 1024  # one server-sent event; held whole before it is passed on
    answer_bytes: int = 32 * 1024 * 1024  # a non-streamed answer, held whole to be retried; pooling: twice that
    error_body_bytes: int = 64 * 1024  # an engine's error

    # How long anyone may wait, seconds
    head_s: float = 10.0  # from the first byte (or the connection) to the end of the headers
    body_s: float = 30.0  # from the headers to the whole body
    upload_s: float = 900.0  # likewise, of a file: 200 MB at 2 Mbit/s
    keep_alive_s: float = 75.0  # an idle client connection
    linger_s: float = 2.0  # after an early refusal the client may still send: closing at once resets the answer away
    lame_duck_s: float = 1.0  # an idle client connection while draining: long enough for a request on its way
    lame_duck_handover_s: float = 30.0  # the same where a successor serves: as long as most clients keep one idle
    connect_s: float = 1.0  # to a replica in the same network
    first_byte_s: float = 60.0  # a stream's first event, per attempt
    idle_s: float = 30.0  # between two reads of a stream
    answer_s: float = 600.0  # a whole request, unless the caller names a shorter deadline
    write_stall_s: float = 30.0  # a client that does not read `least_read_bytes` of what waits for it
    upstream_keep_alive_s: float = 4.0  # below vLLM's own default of 5, so that we close first
    cold_wait_s: float = 15.0  # for an adapter that no replica has loaded; 200 MB at 100 MB/s, with room for a drain
    cold_pause_s: float = 0.25  # before agents that could not load it are asked again; doubles up to 2 s

    wake_wait_s: float = 300.0  # for the first replica of a pool at zero: an 8B base takes 173 s, a new node minutes

    # How long a snapshot is believed, seconds; 0: for ever
    snapshot_max_age_s: float = 86_400.0  # a key that is revoked while the registry is away is good for no longer

    # What is not tried for ever
    sampled_traces: int = 0  # of 2^32 traces that begin here, so many leave spans; 0: nobody's do
    quarantine_after_replicas: int = 2  # that failed with a prompt in flight: then it is refused for a while; 0: never

    media_hosts: frozenset[str] = frozenset()  # from which engines may be sent to fetch pictures and sounds

    # How often a tenant may ask for what no engine answers
    lookups_per_minute: int = 6000  # 1,000 of them at once (`lookups`)

    # How much may be open
    connections: int = 9_500  # below half of the file descriptors: a stream uses two
    connections_per_address: int = 0  # 0: no bound; behind a front all clients come from a few addresses
    least_read_bytes: int = 512 * 1024  # in `write_stall_s`: 17 KB/s, at which the largest answer takes half an hour
    uploads_bytes: int = 256 * 1024 * 1024  # of large bodies and answers, together: 64 of the largest (`held_bytes`)
    slow_reader_bytes_per_s: int = 128 * 1024  # a line of 1 Mbit/s: who reads less gives way where others need memory
    idle_upstreams_per_replica: int = 256
    cold_waiting_per_adapter: int = 256  # requests that wait for one adapter: what one replica can then take at once
    cold_waiting: int = 2048  # for any; for one tenant's, half
    cold_loads: int = 512  # adapters on their way, though nobody may wait for them any more; of one tenant's, half
    wake_waiting: int = 1024  # requests that wait for pools at zero; of one tenant's, half
    wake_waiting_bytes: int = 64 * 1024 * 1024  # of their bodies

    # How much may be remembered
    prefix_blocks: int = 500_000  # of prompts by where they were sent: 53 MB, and 256 MB of text at 512 bytes a block
    prefix_ttl_s: float = 1800.0  # an engine keeps what nobody drives out: after half an hour somebody has
