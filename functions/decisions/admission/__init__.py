"""Admission control of one pool: dispatch, queue or reject."""
