"""Batches: their record and transitions, input lines, result parts, pace."""
