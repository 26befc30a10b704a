"""Autoscaling of a pool: rules, forecasts, scaling to zero, accelerator slots."""
