"""Published algorithms of other routers, for comparison with `functions.decisions.routing.choice`.

Each is written from its publication, one file each with its formula and constants. It receives the candidates of
shoal's own router (ready, not tried, not ejected, with the adapter), which is more than some of them know.

    live        algorithms that a real gateway can run: round-robin, least-loaded, cache-aware
    simulated   all of them by name, for a simulated fleet
"""
