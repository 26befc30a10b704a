"""Limits of the gateway, each with its reason. Frozen; one instance per process.

The timeouts exist because no ASGI server has all of them: uvicorn waits without limit for a header, a body, or a
client that stopped reading.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    # Sizes of a request
    body_bytes: int = 4 * 1024 * 1024  # eight times the size of a 131,072-token prompt in English
    head_bytes: int = 16 * 1024  # request line and headers together
    header_count: int = 64
    session_chars: int = 512  # session id, which is only hashed
    json_depth: int = 64  # a deeper body is an attack on recursive parsers
    json_values: int = 100_000  # objects, arrays and keys: 128 tools with schemas are 50,000; parsing these takes 40 ms
    messages: int = 2048
    prompts: int = 128  # per completion request
    tools: int = 128
    choices: int = 8  # `n`: the engine's own cap is 16,384
    stop_strings: int = 4
    logit_bias_entries: int = 300
    pooling_inputs: int = 2048  # texts to embed, classify or score in one request; OpenAI's own bound

    # Sizes of an answer
    event_bytes: int = 1024 * 1024  # one server-sent event; buffered completely before it is relayed
    # a non-streamed answer, buffered completely so that it can be retried; pooling: twice that
    answer_bytes: int = 32 * 1024 * 1024
    error_body_bytes: int = 64 * 1024  # an engine's error

    # Timeouts, seconds
    head_s: float = 10.0  # from the first byte (or the connection) to the end of the headers
    body_s: float = 30.0  # from the headers to the whole body
    upload_s: float = 900.0  # the same for a file: 200 MB at 2 Mbit/s
    keep_alive_s: float = 75.0  # idle client connection
    # after an early rejection the client may still send; closing immediately would reset the answer
    linger_s: float = 2.0
    lame_duck_s: float = 1.0  # an idle client connection while draining: long enough for a request that is on its way
    # the same if a successor serves: as long as most clients keep an idle connection
    lame_duck_handover_s: float = 30.0
    connect_s: float = 1.0  # to a replica in the same network
    first_byte_s: float = 60.0  # a stream's first event, per attempt
    idle_s: float = 30.0  # between two reads of a stream
    answer_s: float = 600.0  # a whole request, unless the caller sets a shorter deadline
    write_stall_s: float = 30.0  # a client that reads less than `least_read_bytes` of its pending data
    upstream_keep_alive_s: float = 4.0  # below vLLM's default of 5, so that the gateway closes first
    cold_wait_s: float = 15.0  # for an adapter that no replica has loaded; 200 MB at 100 MB/s, with time for a drain
    cold_pause_s: float = 0.25  # before agents that could not load it are called again; doubles up to 2 s

    # for the first replica of a pool at zero: an 8B base takes 173 s, a new node takes minutes
    wake_wait_s: float = 300.0

    # Maximum age of a snapshot, seconds; 0: unlimited
    # a key that is revoked while the registry is unreachable stays valid no longer than this
    snapshot_max_age_s: float = 86_400.0

    # Tracing and quarantine
    sampled_traces: int = 0  # traces, of 2^32 that begin here, that leave spans; 0: none
    # replicas that failed with a prompt in flight before the prompt is quarantined; 0: never
    quarantine_after_replicas: int = 2

    media_hosts: frozenset[str] = frozenset()  # hosts from which engines may fetch images and audio

    # Rate of a tenant's calls that no engine answers
    lookups_per_minute: int = 6000  # 1,000 of them in a burst (`lookups`)

    # Open connections and held bytes
    connections: int = 9_500  # below half of the file descriptors: a stream uses two
    connections_per_address: int = 0  # 0: unlimited; behind a front proxy all clients come from a few addresses
    least_read_bytes: int = 512 * 1024  # in `write_stall_s`: 17 KB/s, at which the largest answer takes half an hour
    uploads_bytes: int = 256 * 1024 * 1024  # large bodies and answers together: 64 of the largest (`held_bytes`)
    slow_reader_bytes_per_s: int = 128 * 1024  # a 1 Mbit/s line: slower readers are cut off if others need the memory
    idle_upstreams_per_replica: int = 256
    # requests that wait for one adapter: about what one replica can then process together
    cold_waiting_per_adapter: int = 256
    cold_waiting: int = 2048  # for all adapters; half of it for one tenant's
    # adapter loads under way, even if no request waits for them any more; half of it for one tenant's
    cold_loads: int = 512
    wake_waiting: int = 1024  # requests that wait for pools at zero; half of it for one tenant's
    wake_waiting_bytes: int = 64 * 1024 * 1024  # their bodies

    # Remembered prefixes
    # blocks of prompts by replica that they were sent to: 53 MB, and 256 MB of text at 512 bytes a block
    prefix_blocks: int = 500_000
    prefix_ttl_s: float = 1800.0  # an engine keeps blocks until others evict them: after half an hour that has happened
