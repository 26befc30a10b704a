"""Credential that a gateway or the controller shows one agent: it opens that agent's port alone, for one purpose.

An agent's address is what a heartbeat names, the pod behind it may be another's by now, and the connection is plain
HTTP. So the secret that opens every agent never goes there. Whoever names an address of his own gets what opens nothing
but that address, and cannot compute the secret from it. Neighbours: `role_credentials` has the secrets.
"""

import hashlib
import hmac


def agent_credential(secret: str, host: str, port: int) -> str:
    """Of the agent that is reached there, as its heartbeat writes the host."""
    return hmac.new(secret.encode(), f"shoal: to the agent at {host} {port}".encode(), hashlib.sha256).hexdigest()
