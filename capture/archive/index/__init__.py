"""The index of an archive's objects: a copy-on-write tree of pages."""
