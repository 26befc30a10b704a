"""Autoscalers side by side over a day: the real decision, others' published ones, and one that knows what will come."""
