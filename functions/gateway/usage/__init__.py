"""Usage: sums that tenants are charged, stored on disk until the registry has them (docs/decisions/0046)."""
