"""What a client is told: servers, TLS, credentials, timings; contexts of the `nats` tool."""
