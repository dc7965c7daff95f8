"""What leaders do to an archive: sweep, compaction, retention."""
