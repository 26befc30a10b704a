"""Credential that a gateway or the controller presents to one agent. It is valid for that agent's port and one
purpose.

The address comes from a heartbeat, the pod behind it may have been replaced, and the connection is plain HTTP. The
secret that is valid for every agent is therefore never sent there. A process that reports a false address receives
only a credential for that address, and cannot compute the secret from it. `role_credentials` has the secrets.
"""

import hashlib
import hmac


def agent_credential(secret: str, host: str, port: int) -> str:
    """Return the credential for the agent at this address, an HMAC of `secret` in hexadecimal; `host` is written as in
    the agent's heartbeat."""
    return hmac.new(secret.encode(), f"shoal: to the agent at {host} {port}".encode(), hashlib.sha256).hexdigest()
