"""What nodes show each other: a token that follows from the installation's, and opens nothing but chunks.

A peer's address is what somebody announced, the node behind it may be gone and its IP another pod's by now, and the
connection is plain HTTP. So the internal token, which opens registry and agents, never goes there; whoever picks this
one up can read chunks from nodes, and cannot compute the other from it.
"""

import hashlib
import hmac

_PURPOSE = b"shoal: chunks between nodes"


def peer_token(internal_token: str) -> str:
    return hmac.new(internal_token.encode(), _PURPOSE, hashlib.sha256).hexdigest()
