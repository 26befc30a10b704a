"""The engine's liveness probe: does the agent say that the engine is beyond help?

Only the agent can tell hung from slow: vLLM's own /health stays 200 in an engine that makes no tokens. An agent that
does not answer says nothing about the engine, and must not get it killed: only its 503 counts.

    livez.py URL
"""

import sys
import urllib.error
import urllib.request

_TIMEOUT_S = 3.0


def main(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S):  # noqa: S310 - the pod's own address
            return 0
    except urllib.error.HTTPError as answer:
        return 1 if answer.code == 503 else 0
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
