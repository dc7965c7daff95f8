"""Handlers for messages of a durable consumer, and dead letters for messages that they can't handle."""
