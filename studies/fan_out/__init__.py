"""A fan-out in virtual time: thousands of nodes that use `decisions.distribution.swarm` and `tracker` unchanged.

assumptions   assumptions about links, store and faults
events        the virtual clock and its event queue
links         bandwidth shared between transfers
node          one node: its requests and announcements
simulation    the whole; `simulate(assumptions) -> Outcome`
"""
