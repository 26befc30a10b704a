"""Batches: record and transitions, input lines, result parts, request rate."""
