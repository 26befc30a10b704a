"""Tenants' limits: accounts, reservations, leased shares of limits that gateways keep together."""
