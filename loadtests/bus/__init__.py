"""Cost of a fleet's traffic on the bus: measured on one Valkey, then computed for thousands of replicas."""
