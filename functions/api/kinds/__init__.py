"""The YAML kinds that operators write, as strict frozen models.

Each kind has its own file, and `catalogue` lists them. A new kind needs a model here and a line there; the loader
needs no change.
"""
