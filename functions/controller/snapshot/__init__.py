"""From checked YAML to the published snapshot: compile, resolve, hold back, publish."""
