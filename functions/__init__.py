"""shoal: one base model, a shoal of adapters, one fleet.

Each folder is one role or layer; docs/contributing.md maps them.
"""
