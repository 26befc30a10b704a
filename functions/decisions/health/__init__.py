"""Health of processes, engines and replicas: backoff, circuit breaker, outlier detection, quarantine."""
