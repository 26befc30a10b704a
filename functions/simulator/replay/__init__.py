"""A recorded gateway's decisions made again by the simulator's gateway: what the simulation is worth."""
