"""`capture demo`: captures, compacts and queries real flights."""
