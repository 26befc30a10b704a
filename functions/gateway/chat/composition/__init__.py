"""Composition of one client's chat from several requests: recalled messages, tool calls in between, a summary first.

`composer` decides which requests need it, `composition` runs one, `history` has the earlier messages, `gathering`
collects answers, and `spoken` reads and writes them. Every round is an ordinary request: admitted, counted, queued
and routed like any other.
"""
