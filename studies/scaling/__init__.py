"""Autoscalers compared over a day: shoal's decision, other systems' published ones, and a clairvoyant one."""
