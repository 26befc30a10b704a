"""A fan-out in virtual time: thousands of nodes deciding with `decisions.distribution.swarm` and
`decisions.distribution.tracker` unchanged.

assumptions   what is taken for granted about links, store and faults
events        the clock: what happens when
links         bandwidth shared between transfers
node          one node: its asks carried out, its announcements
simulation    everything together; `simulate(assumptions) -> Outcome`
"""
