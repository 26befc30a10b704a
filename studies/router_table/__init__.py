"""Every router, every trace, three loads, several seeds: the large table, made in pieces that are kept.

trials    the traces, with the fleet that serves them and the time to first token that counts as good
runs      one piece: a trace at a load with a seed, for all routers; as lines of a file, so that it can be gone on with
summary   what the lines say: medians, ranges, who is first
"""
