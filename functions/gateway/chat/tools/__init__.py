"""Tools that the gateway calls for a tenant's models: `declared` has the tools of a request, `calls` calls them.

A request names them as `"tools": [{"type": "server", "name": "weather"}]`; the model sees them as functions.
"""
