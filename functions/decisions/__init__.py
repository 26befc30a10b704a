"""The brain: pure functions over frozen values. No I/O, no clock, no randomness except as arguments.

The gateway, the agent, the controller and the simulator call the same functions.
"""
