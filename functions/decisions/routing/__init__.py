"""Choice of a replica: predicted time to first token, session affinity, retries, fallback."""
