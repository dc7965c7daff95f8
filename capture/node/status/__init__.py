"""The status of archives, for people and for monitoring systems."""
