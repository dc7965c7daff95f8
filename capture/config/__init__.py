"""The configuration of a capture: `capture.toml`, environment and flags, for one stream or several."""
