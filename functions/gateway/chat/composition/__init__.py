"""One client's chat as several requests of ours: what was said before, tools in between, a summary first.

`composer` decides which requests need it, `composition` conducts one, `history` has what was said before, `gathering`
catches answers on their way, `spoken` reads and writes them. Every round is an ordinary request: admitted, counted,
queued and routed as any other.
"""
