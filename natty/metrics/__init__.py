"""What goes on, for Prometheus and for probes."""
