"""How many replicas a pool has: rules, forecasts, shrinking, accelerator slots."""
