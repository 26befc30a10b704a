"""The YAML kinds: what operators write, as strict frozen models.

One file a kind; `catalogue` lists them. A new kind is a model here and a line there; the loader needs no change.
"""
