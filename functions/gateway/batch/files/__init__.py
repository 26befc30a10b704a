"""Tenants' files: what a batch reads and what it leaves. Kept in S3, below a prefix of each tenant's own.

`names` makes ids and keys, `shelf` keeps and lists, `upload` reads a form as it streams, `routes` speak OpenAI's
dialect of it.
"""
