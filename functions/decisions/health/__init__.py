"""Health of processes, engines and replicas: backoff, circuit breaker, outliers, quarantine."""
