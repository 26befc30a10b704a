"""Tools that the gateway calls for a tenant's models: `declared` says what may be called, `calls` calls it.

A request opts in by naming them, `"tools": [{"type": "server", "name": "weather"}]`; the model sees them as functions.
"""
