"""Files with secrets, which only their owner may read."""

from pathlib import Path


def write_secret(path: Path, content: str | bytes) -> Path:
    """Write a file of mode 0600; return its path."""
    path.touch(mode=0o600)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
