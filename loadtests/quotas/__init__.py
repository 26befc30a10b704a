"""Limits under load: one tenant's use over several gateways, and a comparison of charged with computed tokens."""
