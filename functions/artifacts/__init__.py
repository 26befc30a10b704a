"""The content-addressed store: manifests, S3, verification, and the node's cache of adapters by digest.

An artifact is a manifest and its files; its digest names the manifest's bytes, the manifest names every file's bytes.
Nothing is visible under a digest's path that was not verified against it. May import api and decisions, never a role.
"""
