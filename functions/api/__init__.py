"""The contract: ids, API keys, the YAML kinds and the snapshot compiled from them.

All types are strict and frozen. This package imports no other package of the project; every other one may import it.
"""
