"""Schema steps, one module each; a released step never changes."""
