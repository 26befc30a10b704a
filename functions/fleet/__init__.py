"""State that replicas report and how it is transported: heartbeats, the bus, and delivery of snapshots to the data
plane.

May import api and decisions, never a role.
"""
