"""HTTP servers of this project: limits on heads, bodies, idle time and the number of connections."""
