"""Base weights onto a node: `python -m functions.replica.node_fetch WHAT [FOLDER]…`, before or beside an engine.

Fetches artifacts into the node's cache together with the other nodes that need them, serves them what it has meanwhile,
and stays as a seed for as long as it is told to. Adapters do not come this way: they are small, and agents fetch them
from the store themselves. Neighbours: artifacts.swarm does it; settings, wanted (names,
digests, folders) and runner make a process of it.
"""
