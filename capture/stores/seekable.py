"""Files to read whose bytes come from elsewhere, piece by piece: where in them one is."""

from __future__ import annotations

import io


class Positioned(io.RawIOBase):
    """A file of so many bytes, to be read from anywhere in it. What derives from it reads at `_at`, and moves that."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to where the next read begins."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at
