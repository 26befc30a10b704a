"""How fast one artifact reaches many nodes, from peers and store or from the store alone, and what the store gave.

    python -m loadtests.fan_out measure --size-mb 256 --nodes 1,2,4,8,16,32     real processes on this machine
    python -m loadtests.fan_out simulate                                         1,000 nodes, 140 GB, in virtual time

Real parts: node fetchers (a process each), the tracker, SeaweedFS; between nodes and store a proxy that counts bytes,
caps the store's bandwidth and breaks it on demand. `measurement` is one run, `scenarios` the table of them.
"""
