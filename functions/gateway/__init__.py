"""The gateway: shoal's data plane, a FastAPI app whose two busiest routes have a fast lane without ASGI.

Both lanes process a request in the same steps: head -> intake (caller, model, version) -> quota -> admission ->
routing -> request (relay, end). `http/lane.py` and `http/plain.py` are the two client sides, `request/upstream.py` is
the engine side, and `request/exchange.py` joins them. Decisions are made in functions/decisions, which uses no sockets.
"""
