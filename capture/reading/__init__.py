"""Every message of an archive, each once, in order: as an iterator, on into the stream, or by SQL."""
