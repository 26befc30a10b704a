"""The gateway: shoal's data plane, a FastAPI app whose two busiest routes have a fast lane without ASGI.

Both lanes process a request in the same steps: headers -> intake (caller, model, version) -> route -> relay ->
account. `lane.py` and `plain.py` are the two client sides, `upstream.py` is the engine side, and `exchange.py` joins
them. Decisions are made in intake, relay and functions/decisions, which use no sockets.
"""
