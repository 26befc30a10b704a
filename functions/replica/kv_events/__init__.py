"""KV cache of the engine: its events, and the updates that the agent publishes to the fleet.

    decode          bytes of a batch to events; hostile input is rejected
    order           which batch comes next, which are missing, and if the engine is another one
    engine_blocks   events to names that mean the same everywhere (`decisions.prefix.block_names`), with the changes
    source          ZeroMQ: subscription, replay
    update_schedule  updates for the bus: content, frequency, recipients
    watch           the loops that run the above

An index is complete or it is dropped. A published index may lack blocks that the engine holds (a request then goes
where less of it is cached), but it never names missing blocks for long.
"""
