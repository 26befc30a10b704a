"""Published algorithms of other routers, for comparison with `functions.decisions.routing.choice`.

Each is written from its publication, one file each with its formula and constants, and gets the candidates that shoal's
own router gets (ready, not tried, not ejected, holders of the adapter), which is more than some of them know.

live        those that a real gateway can run: round-robin, least-loaded, cache-aware
simulated   all of them by name, for a simulated fleet
"""
