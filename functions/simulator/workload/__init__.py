"""Workloads: recorded traces and synthetic traffic, as one stream of requests in order of time."""
