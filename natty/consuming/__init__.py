"""Handlers on messages of a durable consumer, and what becomes of messages that they can't handle."""
