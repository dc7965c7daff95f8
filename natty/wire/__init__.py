"""The connection: bytes to and from a NATS server over TLS, and what they mean."""
