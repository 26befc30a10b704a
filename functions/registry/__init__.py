"""The registry: what the fleet should be (the snapshot) and what it is (the view from heartbeats), over HTTP.

The data plane follows it and never depends on it: a registry that is away costs news, not service.
May import what lies below roles; no other role.
"""
