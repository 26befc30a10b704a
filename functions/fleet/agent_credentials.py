"""Credential that a gateway or the controller shows one agent: it follows from the internal token, and opens that
agent's port alone.

An agent's address is what a heartbeat names, the pod behind it may be another's by now, and the connection is plain
HTTP. So the internal token, which opens the registry and every agent, never goes there. Whoever names an address of his
own gets what opens nothing but that address, and cannot compute the token from it.
"""

import hashlib
import hmac


def agent_credential(internal_token: str, host: str, port: int) -> str:
    """Of the agent that is reached there, as its heartbeat writes the host."""
    return hmac.new(
        internal_token.encode(), f"shoal: to the agent at {host} {port}".encode(), hashlib.sha256
    ).hexdigest()
