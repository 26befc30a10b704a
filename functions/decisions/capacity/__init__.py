"""What a model needs and what an accelerator gives: memory, concurrency, speed, placement and price. Pure."""
