"""Studies: comparisons of shoal with other systems, and runs at sizes that no local machine has. Not installed."""
