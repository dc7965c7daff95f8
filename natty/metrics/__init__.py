"""Metrics for Prometheus, and the pages for liveness and readiness probes."""
