"""The format of an archive: its documents, paths, signatures and encryption."""
