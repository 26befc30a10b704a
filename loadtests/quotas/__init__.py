"""Limits under load: what several gateways let one tenant have, and whether what was charged is what was computed."""
