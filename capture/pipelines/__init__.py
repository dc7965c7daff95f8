"""Pipelines: tables that are derived from streams, and kept right by the elected leader."""
