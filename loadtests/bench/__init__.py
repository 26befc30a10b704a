"""`make bench`: what the gateway costs, side by side with no gateway, in one run.

Absolute figures move with the machine, ratios hold; so every row is measured in the same run, interleaved over rounds,
and the median is shown with its range. CPU is that of the gateway process alone, from the kernel's own accounting.
"""
