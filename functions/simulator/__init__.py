"""A fleet in virtual time that runs `functions.decisions` unchanged.

Nothing is here yet but its place in the import law.
"""
