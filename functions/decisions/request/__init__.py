"""One request before it runs: caller, size and expected cost."""
