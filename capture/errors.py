class CaptureError(Exception):
    """Something went wrong in capture."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or type(self).__name__).strip().splitlines()[0])


class ConfigError(CaptureError):
    """The configuration can't be used."""


class StoreError(CaptureError):
    """The store failed; nothing was acknowledged, so nothing is lost."""


class StoreFullError(StoreError):
    """The store is full: free space or choose another store, then start again."""


class StoreUnreadableError(StoreError):
    """The store can't be read or written: check its permissions."""


class AlreadyStored(CaptureError):
    """An object of this name exists; it was not touched."""


class NotStored(CaptureError):
    """There is no such object in the store."""


class Fenced(CaptureError):
    """Another leader's term has begun; this commit was refused and nothing changed."""


class ManifestError(CaptureError):
    """The archive's manifest is damaged, or of a newer format than this version reads."""


class FormatError(CaptureError):
    """An object of the archive is damaged, or of a newer format than this version reads."""


class CipherError(CaptureError):
    """An encrypted object can't be opened with the keys that are given."""


class SparkError(CaptureError):
    """Spark could not be started, or a job failed."""


class CompactionError(CaptureError):
    """What a compaction wrote does not add up with what it read; nothing was committed."""


class NotSwept(CaptureError):
    """The archive has no manifest of this version yet: the sweep's leader makes one."""
