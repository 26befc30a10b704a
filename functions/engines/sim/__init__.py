"""Simulated engine: a server that a client cannot distinguish from vLLM 0.32 on the routes that shoal uses.

Three layers, each importing only those above it:

    time    limits · hashing · blocks · adapters · sequence · scheduler · stats · core     pure: no clock, no I/O
    text    tokenizer · templates · voice · plan · logprobs · model                        the reply, token by token
    wire    protocol · refusals · accept · chunks · bodies · live · stream · routes · server    HTTP as vLLM speaks it

`faults` decides which request breaks and how; `breakage` and `guards` apply it. `python -m functions.engines.sim` is
the composition root. tests/contract runs the same assertions against this server and against the real vLLM.
"""
