"""Chunks between nodes: one node's part in a swarm, with sockets, disk and clock around `decisions.distribution.swarm`.

wire       what nodes and tracker say to each other, validated           tracker_client  asking the tracker
addresses  which addresses of peers are believed                         peer_client     a chunk from a peer
bandwidth  bytes a second, up and down                                   origin          a chunk from the store
shelf      which chunks this node can give                               peer_token      what nodes show each other
download   all of it: the one loop                                       exchange        asks carried out

A chunk is believed only by its hash, whoever sent it; what is not whole is not visible (assembly, cache). Serving is
HTTP and lies with the role that serves (replica.chunk_routes).
"""
