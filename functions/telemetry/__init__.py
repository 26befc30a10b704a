"""Metrics, request traces, and their sinks. Telemetry never delays a request.

May import api and decisions, never a role. The roles decide what is counted; this layer sends it out of the process.
"""
