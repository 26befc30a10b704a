"""Metrics, and later request traces and their sinks. Fire and forget: telemetry never holds up a request.

May import api and decisions, never a role; the roles decide what is counted, this layer how it leaves the process.
"""
