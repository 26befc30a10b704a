"""Tenants' accounts at this gateway: reservation, leases, settlement, refusals."""
