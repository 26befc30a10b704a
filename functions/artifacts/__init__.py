"""The content-addressed store: manifests, chunks, S3, verification, and the node's cache of artifacts by digest.

An artifact is a manifest and its files; its digest names the manifest's bytes, the manifest names the bytes of every
file and of the chunks that files travel in. Nothing is visible under a digest's path that was not verified against it.
May import api and decisions, never a role.
"""
