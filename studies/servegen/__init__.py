"""ServeGen's recorded clients as a workload: rates, bursts and lengths (arXiv 2505.09999, Apache-2.0)."""
