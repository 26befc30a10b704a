"""The planned scale, simulated: regions in parallel, each in its own process, and the loss of one."""
