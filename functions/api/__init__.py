"""The contract: ids, API keys, the YAML kinds and the snapshot compiled from them.

Strict and frozen throughout. Imports nothing of ours; everything else may import this.
"""
