"""Knowledge of cached prefixes: names of blocks, their holders, and the prompts sent to each replica."""
