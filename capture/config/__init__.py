"""What a capture is told: `capture.toml`, environment and flags, of one stream or of several."""
