"""Limits of tenants: accounts, reservations, and leased shares of limits that gateways enforce together."""
