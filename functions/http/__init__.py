"""HTTP servers of ours, whatever they serve: bounds on heads, bodies and silence, and on how many may be connected."""
