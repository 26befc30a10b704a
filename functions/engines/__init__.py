"""Engines: `client` is what the replica agent uses; `sim` is a server that behaves like vLLM 0.32.

Imports `functions.api`, `functions.decisions` and libraries only. tests/contract holds both sides to the same
assertions.
"""
