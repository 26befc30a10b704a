"""One request under way: the exchange, its attempts, the engine connections, the relay."""
