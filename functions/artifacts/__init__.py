"""Content-addressed store of artifacts: manifests, chunks, S3, verification, and the node's cache by digest.

An artifact is a manifest and its files. The digest is the hash of the manifest's bytes; the manifest names the hash
of every file and of every chunk in which files are transferred. A path named after a digest only ever holds verified
content. This package may import `api` and `decisions`, never a role.
"""
