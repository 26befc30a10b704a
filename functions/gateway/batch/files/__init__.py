"""Tenants' files: inputs and outputs of batches, stored in S3 below a prefix for each tenant.

`names` makes ids and keys, `shelf` stores and lists files, `upload` parses a form as it streams, and `routes` has
OpenAI's API.
"""
