"""Regions: the facts that this registry shows to other regions' registries, and those that it adopts from them."""
