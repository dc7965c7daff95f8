"""Messages from a durable consumer, as they are asked for."""
