"""Regions: what this registry tells the registries of others, and takes over from them."""
