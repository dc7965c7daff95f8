"""A stream's messages into blocks, blocks into the store, then the acknowledgement."""
