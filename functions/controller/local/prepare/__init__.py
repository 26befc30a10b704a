"""Preparation of the local fleet before it can start, one step a file.

Law: every step can be killed anywhere and run again. It publishes its result by one rename or one stamp, written last,
and does nothing when the result is already there.
"""
