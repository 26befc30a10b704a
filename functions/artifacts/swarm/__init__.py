"""Exchange of chunks between nodes: sockets, disk and clock around `decisions.distribution.swarm`.

    protocol       messages between nodes and tracker, validated             download   the whole of one artifact
    addresses      which addresses of peers are accepted                     exchange   the loop, with its threads
    chunk_clients  chunks from peers and from the store, rate-limited        shelf      chunks that this node can send

A chunk is accepted only by its hash, and incomplete artifacts are not visible (assembly, cache). The role that serves
chunks over HTTP has the routes (replica.chunk_routes).
"""
