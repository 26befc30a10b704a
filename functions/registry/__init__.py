"""The registry: serves the fleet's desired state (the snapshot) and its observed state (from heartbeats) over HTTP.

The data plane follows the registry but does not depend on it: without the registry, requests are served and changes
wait. This package may import the layers below the roles, but no other role.
"""
