"""What is asked of a fleet: recorded traces and synthetic traffic, as one stream of requests in order of time."""
