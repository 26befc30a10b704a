"""Prepare what the local fleet needs before it can start; each step is one file.

Invariant: every step can be killed at any point and run again. A step publishes its result by one rename or one
stamp, written last, and does nothing if the result already exists.
"""
