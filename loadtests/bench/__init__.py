"""`make bench`: cost of shoal's gateway, compared with other gateways and with no gateway in one run.

Absolute figures vary with the machine, but ratios are stable. All rows are therefore measured in the same run,
interleaved over rounds, and shown as a median with its range. CPU time is that of the gateway process, from the kernel.
"""
