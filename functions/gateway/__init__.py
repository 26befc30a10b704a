"""The gateway function: the data plane. A FastAPI app whose two hot routes have a fast lane.

A request's way, the same on both lanes: headers -> intake (who, what, which version) -> route -> relay -> account.
`lane.py` and `plain.py` are the two client sides, `upstream.py` the engine side, `exchange.py` joins them; what they
decide is in intake, relay and functions/decisions, none of which knows a socket.
"""
