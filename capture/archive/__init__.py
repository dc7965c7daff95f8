"""The format on disk: what an archive is."""
