"""Usage: sums of what tenants are charged, kept on disk until the registry has them (docs/decisions/0053)."""
