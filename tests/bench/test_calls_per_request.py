"""Cost of a request as the number of calls of shoal's functions, which does not depend on the machine's load.

`make bench` measures microseconds. The number of calls shows on any machine when a change adds work to every request. A
call with its body takes about 0.4 us on the machine of docs/measurements/README.md.
"""

import sys
from types import FrameType

from loadtests.bench.bare import Bare
from loadtests.bench.load import request
from loadtests.bench.parts import body

REPLICAS = 32
REQUESTS = 16
MOST_CALLS = 260  # now 257, of which 17 choose the replica that every gateway assumes for a conversation
MOST_CALLS_OF_ROUTING = 23  # now 21, none of them per replica


def _calls(replicas: int) -> dict[str, int]:
    """Return the number of calls by file, for REQUESTS unstreamed answers to prompts that replicas have cached."""
    bare = Bare(replicas)
    requests = [request(bare.target, body(1024, variant)) for variant in range(REQUESTS)]
    for number in range(REQUESTS * replicas):
        bare.serve_whole_request(requests[number % REQUESTS])
    found: dict[str, int] = {}

    def count(frame: FrameType, event: str, argument: object) -> None:
        _, ours, file = frame.f_code.co_filename.rpartition("functions/")
        if event == "call" and ours:
            found[file] = found.get(file, 0) + 1

    sys.setprofile(count)
    try:
        for request_bytes in requests:
            bare.serve_whole_request(request_bytes)
    finally:
        sys.setprofile(None)
    return found


async def test_a_request_stays_within_its_budget_of_calls() -> None:
    found = _calls(REPLICAS)
    assert sum(found.values()) / REQUESTS <= MOST_CALLS, sorted(found.items(), key=lambda each: -each[1])[:20]


async def test_routing_calls_nothing_for_each_replica() -> None:
    routing = ("decisions/rout", "decisions/prediction", "decisions/replicas", "decisions/adapter_copies")
    calls = {file: count for file, count in _calls(REPLICAS).items() if file.startswith(routing)}
    assert sum(calls.values()) / REQUESTS <= MOST_CALLS_OF_ROUTING, calls
