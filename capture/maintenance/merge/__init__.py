"""Merges blocks into files of the table: sorted, each sequence once."""
