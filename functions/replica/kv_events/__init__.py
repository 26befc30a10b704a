"""KV cache of the engine: its events, and the updates that the agent publishes to the fleet.

    decode          bytes of a batch to events; hostile input refused
    order           which batch comes next, which are missing, and whether the engine is another one
    engine_blocks   events to names that mean the same everywhere (`decisions.prefix.block_names`), with what changed
    source          ZeroMQ: subscribing, replay
    telling         what goes on the bus, how often, for whom
    watch           the loops that drive the above

Law: an index is complete or it is thrown away. What is told may lack blocks that the engine holds (a request then goes
where less of it is cached); it never names blocks for long that the engine does not hold.
"""
