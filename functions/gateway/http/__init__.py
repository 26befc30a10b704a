"""Client connections: the fast lane, plain ASGI, bounds on heads and uploads, handover."""
