"""`capture demo`: flights, captured, compacted and asked for."""
