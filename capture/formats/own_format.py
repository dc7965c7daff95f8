"""A format of the user, "module:function": its writer makes the objects, and nothing in capture reads them back."""

from __future__ import annotations

from collections import Counter
from typing import Any, NoReturn

from capture.archive.stored_formats import OWN
from capture.decoders import Decoding
from capture.errors import CaptureError, FormatError, StoreError
from capture.formats.contract import NEEDS, Unreadable, check_usable
from capture.ingest.block import SealedBlock, Writer
from capture.stores.plugin import FAULTS, make_plugin
from natty.config.units import write_count


class OwnFormat(Unreadable):
    """A user's writer behind the contract of `Format`. Records name it `own-` and the writer's `format`.

    A block that the writer can't write is a StoreError: its messages are handed back, and nothing is acknowledged.
    Reading is a FormatError, since an archive must not name code that its readers load.
    """

    def __init__(self, name: str, inner: Writer | None = None) -> None:
        """`name` is the end of the objects' names. Without `inner`, it only answers that it can't be read."""
        self.format = f"{OWN}{name}"
        self.unfit: Counter[str] = Counter()
        self._inner = inner

    def __repr__(self) -> str:
        return f"OwnFormat({self.format!r}, {self._inner!r})"

    @classmethod
    def of(cls, writer: Writer) -> OwnFormat:
        """Return the format of a user's writer. ConfigError if it is not a writer, or can't store any block."""
        check_usable(writer)
        return cls(writer.format, writer)

    @classmethod
    def load(cls, spec: str, decoding: Decoding[Any]) -> OwnFormat:
        """Return the format of "module:function", which gets the decoder and returns a `Writer`. ConfigError."""
        return cls.of(make_plugin(spec, "writer", decoding, needs=NEEDS))

    def write(self, block: SealedBlock) -> bytes:
        """Return the object's bytes. StoreError if the writer raises, returns something else, or nothing."""
        assert self._inner is not None
        kind, count = f"the writer {type(self._inner).__name__}", write_count(block.count, "message")
        try:
            data = self._inner.write(block)
        except CaptureError:
            raise
        except FAULTS as error:
            raise StoreError(f"{kind} failed on {count}: {type(error).__name__}: {error}") from error
        if not isinstance(data, bytes):
            raise StoreError(f"{kind} returned {type(data).__name__}, not bytes")
        if not data:
            raise StoreError(f"{kind} returned no bytes for {count}")
        return data

    def refuse(self) -> NoReturn:
        """Raise FormatError."""
        name = self.format.removeprefix(OWN)
        raise FormatError(f"{name} is a format of your own, which capture writes and can't read")
