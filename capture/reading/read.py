"""Every message of a stream, from its first one in the archive to the newest one in the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from capture.reading.options import ReadOptions, Where

if TYPE_CHECKING:  # `import capture` needs nothing but natty
    import pyarrow as pa

    from capture.ingest.record import Record


async def read(archive: Where, **options: Any) -> AsyncGenerator[Record[None], None]:
    """Yield every message of a stream, each exactly once, ascending by sequence; options as in `ReadOptions`.

    Blocks that wait for sweep and compaction, and table files are read alike, whatever becomes of them meanwhile.
    Without `natty` it ends with what is stored.

    FormatError and CipherError name an object that can't be read, or must not be believed, ManifestError and
    SignatureError a document; DataLossError: see
    `ReadOptions`. CaptureError if the stream is another one than was captured, or is made again while it is read.
    """
    from capture.reading.merge import EACH, messages_of

    async with aclosing(read_batches(archive, columns=EACH, **options)) as batches:
        async for batch in batches:
            for message in messages_of(batch):
                yield message


async def read_batches(
    archive: Where, *, columns: Sequence[str] = (), **options: Any
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the same as Arrow record batches with columns of the envelope, by default all: many times as fast."""
    from capture.reading.opening import batches_of

    wanted = ReadOptions(**options)
    async with aclosing(await batches_of(archive, wanted, columns)) as batches:
        async for batch in batches:
            yield batch
