"""The admission queue of each pool and what it reports."""
