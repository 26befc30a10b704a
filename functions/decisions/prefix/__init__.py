"""Knowledge of cached prefixes: names of blocks, who holds them, what was sent where."""
