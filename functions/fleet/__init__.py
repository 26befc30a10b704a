"""What replicas say and how it travels: heartbeats, the bus, the snapshot's way to the data plane.

May import api and decisions, never a role.
"""
