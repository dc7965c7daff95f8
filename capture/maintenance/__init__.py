"""The work of leaders on an archive: sweep, compaction, retention."""
