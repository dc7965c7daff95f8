"""Reads every message of an archive once and in order: as an iterator, on into the stream, or with SQL."""
