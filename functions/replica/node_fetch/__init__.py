"""Base weights onto a node: `python -m functions.replica.node_fetch WHAT [FOLDER]…`, before or next to an engine.

It fetches artifacts into the node's cache together with the other nodes that need them, serves them its chunks
meanwhile, and stays as a seed for the configured time. Adapters do not use it: they are small, and agents fetch them
from the store themselves. Neighbours: artifacts.swarm transfers; settings, wanted (names, digests, folders) and
runner form the process.
"""
