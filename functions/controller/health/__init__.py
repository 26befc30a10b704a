"""Health of the fleet as the controller sees it: slow replicas, failed accelerators, nodes that are not ready."""
