"""Verify and purge: what an archive is missing, and what its stream no longer needs to keep."""
