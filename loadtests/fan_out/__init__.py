"""Time until one artifact is on many nodes, and bytes sent by the store: with peers, or from the store alone.

    python -m loadtests.fan_out measure --size-mb 256 --nodes 1,2,4,8,16,32     real processes on this machine
    python -m loadtests.fan_out simulate                                         1,000 nodes, 140 GB, in virtual time

Node fetchers (a process each), the tracker and SeaweedFS are real. A proxy between nodes and store counts bytes, caps
the store's bandwidth and injects failures. `measurement` is one run, `scenarios` the table of runs.
"""
