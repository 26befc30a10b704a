"""Admission queue of each pool, with its metrics and statistics."""
