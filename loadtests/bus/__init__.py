"""What a fleet's traffic on the bus costs: measured here on one Valkey, computed for thousands of replicas."""
