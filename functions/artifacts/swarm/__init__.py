"""Chunks between nodes: one node's part in a swarm, with sockets, disk and clock around `decisions.distribution.swarm`.

protocol       what nodes and tracker say to each other, validated       download   all of it: one artifact
addresses      which addresses of peers are believed                     exchange   the one loop, with its threads
chunk_clients  chunks from peers and from the store, rate-limited        shelf      which chunks this node can give

A chunk is believed only by its hash, whoever sent it; what is not whole is not visible (assembly, cache). Serving is
HTTP and lies with the role that serves (replica.chunk_routes).
"""
