"""A fleet in virtual time: engines are models, everything that decides is the real thing from `functions.decisions`."""
