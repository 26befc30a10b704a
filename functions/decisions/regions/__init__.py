"""What regions take over from one another."""
