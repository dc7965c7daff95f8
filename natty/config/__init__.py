"""The settings of a client's connection: servers, TLS, credentials, timings; contexts of the `nats` tool."""
