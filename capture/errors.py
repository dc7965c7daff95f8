class CaptureError(Exception):
    """Something went wrong in capture."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (self.__doc__ or type(self).__name__).strip().splitlines()[0])


class ConfigError(CaptureError):
    """The configuration can't be used."""


class NoArchiveError(ConfigError):
    """There is no archive in this store."""


class OtherStoreError(ConfigError):
    """The archive is in another store."""


class StoreError(CaptureError):
    """The store failed; nothing was acknowledged, so nothing is lost."""


class StoreUnfitError(StoreError):
    """The store does not do what an archive needs: use another one."""


class NotStarted(CaptureError):
    """What a node needs did not come in time."""


class NotDrained(CaptureError):
    """Not all that was read could be stored before the stop's deadline; it was handed back."""


class StoreFullError(StoreError):
    """The store is full: free space there."""


class StoreUnreadableError(StoreError):
    """The store can't be read or written: check its permissions."""


class SpillError(CaptureError):
    """The disk of the buffers failed; nothing in them was acknowledged, so nothing is lost."""


class NotAlone(CaptureError):
    """Somebody else reads a consumer whose acknowledgements count for all messages before them."""


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


class KeyMissingError(CipherError):
    """The key that an object is encrypted with was not given: nothing can be said of what is in it."""


class SignatureError(CaptureError):
    """A document of the archive is not signed as it must be."""


class PurgeRefused(CaptureError):
    """The stream can't be purged safely; nothing was deleted."""


class RestoreRefused(CaptureError):
    """The stream can't be restored as asked; nothing was written."""


class RestoreError(CaptureError):
    """The restore failed; what had been written of it was removed."""


class QueryError(CaptureError):
    """The query can't be answered."""


class SparkError(CaptureError):
    """Spark could not be started, or a job failed."""


class CompactionError(CaptureError):
    """What a compaction wrote does not add up with what it read; nothing was committed."""


class NotSwept(CaptureError):
    """The archive has no manifest of this version yet: the sweep's leader makes one."""


class DataLossError(CaptureError):
    """Messages were removed from the stream before they were read."""
