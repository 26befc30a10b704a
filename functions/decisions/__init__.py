"""Decisions: pure functions and state machines without I/O. Clock and randomness are arguments.

The gateway, the agent, the controller and the simulator call the same code.
"""
