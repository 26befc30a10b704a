"""Snapshots from checked YAML: compile, resolve, hold back, publish."""
