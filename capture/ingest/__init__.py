"""Collects a stream's messages in blocks, stores the blocks, then acknowledges the messages."""
