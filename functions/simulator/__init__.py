"""A simulated fleet in virtual time that runs `functions.decisions` and `functions.gateway` unchanged."""
