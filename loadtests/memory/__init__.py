"""Memory test: the gateway's memory must stay flat over a million requests with as little in common as possible."""
