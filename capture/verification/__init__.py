"""Verifies an archive against its stream, and purges stored messages from the stream."""
