"""Continuous capture of JetStream streams: every message in a file, none missing, compacted on Spark."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `X as X` exports a name
    from capture.config.load import load as load
    from capture.errors import (
        AlreadyStoredError as AlreadyStoredError,
        CaptureError as CaptureError,
        CatalogAwayError as CatalogAwayError,
        CatalogError as CatalogError,
        CatalogRefusedError as CatalogRefusedError,
        CatalogUnfitError as CatalogUnfitError,
        CipherError as CipherError,
        CompactionError as CompactionError,
        ConfigError as ConfigError,
        DamagedIndexError as DamagedIndexError,
        DataLossError as DataLossError,
        FencedError as FencedError,
        ForeignEntryError as ForeignEntryError,
        FormatError as FormatError,
        KeyMissingError as KeyMissingError,
        ManifestError as ManifestError,
        NewerFormatError as NewerFormatError,
        NoArchiveError as NoArchiveError,
        NoStatusError as NoStatusError,
        NotAloneError as NotAloneError,
        NotDrainedError as NotDrainedError,
        NotStartedError as NotStartedError,
        NotStoredError as NotStoredError,
        NotSweptError as NotSweptError,
        OtherStoreError as OtherStoreError,
        PipelineError as PipelineError,
        PurgeRefusedError as PurgeRefusedError,
        QueryError as QueryError,
        RestoreError as RestoreError,
        RestoreRefusedError as RestoreRefusedError,
        SignatureError as SignatureError,
        SparkError as SparkError,
        SpillError as SpillError,
        StoreError as StoreError,
        StoreFullError as StoreFullError,
        StoreUnfitError as StoreUnfitError,
        StoreUnreadableError as StoreUnreadableError,
        WriterError as WriterError,
    )
    from capture.node.node import Node as Node
    from capture.pipelines.derivation import PipelineRun as PipelineRun
    from capture.reading.read import read as read, read_batches as read_batches
    from capture.restoring.restore import restore as restore
else:  # the same names, each imported when it is first used (PEP 562)
    _HOMES = {
        "capture.config.load": "load",
        "capture.errors": """
            AlreadyStoredError CaptureError CatalogAwayError CatalogError CatalogRefusedError CatalogUnfitError
            CipherError CompactionError ConfigError DamagedIndexError DataLossError FencedError ForeignEntryError
            FormatError KeyMissingError ManifestError NewerFormatError NoArchiveError NoStatusError NotAloneError
            NotDrainedError NotStartedError NotStoredError NotSweptError OtherStoreError PipelineError
            PurgeRefusedError QueryError RestoreError RestoreRefusedError SignatureError SparkError SpillError
            StoreError StoreFullError StoreUnfitError StoreUnreadableError WriterError
        """,
        "capture.node.node": "Node",
        "capture.pipelines.derivation": "PipelineRun",
        "capture.reading.read": "read read_batches",
        "capture.restoring.restore": "restore",
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
    __all__ = sorted(_HOME_OF)

    def __getattr__(name):
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
