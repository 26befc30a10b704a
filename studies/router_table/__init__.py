"""Table of every router on every trace at three loads with several seeds, made in pieces that are saved.

trials    the traces, with the fleet that serves them and the target for the first token
runs      one piece: a trace at a load with a seed, for all routers; saved as lines of a file, so that it can resume
summary   evaluation of the lines: medians, ranges, the best router
"""
