"""Engines: `client` is what the replica agent uses; `sim` is a server that behaves like vLLM 0.32.

Imports only `functions.api`, `functions.decisions` and libraries. tests/contract applies the same assertions to the
simulated engine and to the real one.
"""
