"""preStop of the engine: ask the agent beside it to drain, and wait until no request is left.

The kubelet sends SIGTERM to all containers of a pod at once, and vLLM then ends what it serves. A preStop hook holds
the engine's SIGTERM back; the agent meanwhile tells the gateways, waits for the last stream, and answers here. How
long that may take is the agent's own setting (SHOAL_REPLICA_DRAIN_TIMEOUT_S): it answers then, drained or not.
An agent that is gone cannot be asked: then there is nothing to wait for that anyone would know of. Where the kubelet
restarts the engine alone, as after a failed liveness probe, the agent goes on: with the new engine it takes work again.

    drain.py URL
"""

import sys
import urllib.request

_WAIT_S = 3600  # the longest that the agent's route takes; its own setting is below that
_SPARE_S = 5


def main(url: str) -> int:
    request = urllib.request.Request(f"{url}?wait_s={_WAIT_S}&engine_ends=true", method="POST")  # noqa: S310 - the pod's own address
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S + _SPARE_S) as answer:  # noqa: S310 - likewise
            return 0 if answer.status == 200 else 1
    except OSError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
