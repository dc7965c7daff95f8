"""Objects of an archive from a list of their records."""

from hashlib import sha256

from capture.archive.index.tree import ALL
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from capture.reading.inventory import Inventory
from capture.reading.supply import Supply
from capture.stores import MemoryStore

SECOND = 10**9


def block(sequences, payload=lambda sequence: b"%d" % sequence):
    sequences = sorted(sequences)
    count = len(sequences)
    return SealedBlock(
        "S",
        "k",
        0,
        Records(
            "S",
            sequences,
            [one * SECOND for one in sequences],
            [b"s.%d" % (one % 3) for one in sequences],
            [b"NATS/1.0\r\nA: b\r\n\r\n" if one % 2 else b"" for one in sequences],
            [payload(one) for one in sequences],
            [1] * count,
            [b"$JS.ACK.S.c.1.%d.%d.%d.0" % (one, one, one) for one in sequences],
            [None] * count,
        ),
        "stop",
    )


async def put(store, path, sequences, format="parquet", compression="", **options):
    made_by = writer(format, compression=compression)
    one = block(sequences, **options)
    data = made_by.write(one)
    await store.put(path, data)
    return Stored(
        path=path,
        stream="S",
        key="k",
        interval=0,
        first=one.first,
        last=one.last,
        count=one.count,
        bytes=len(data),
        sha256=sha256(data).hexdigest(),
        format=made_by.format,
        sequences=Sequences.from_iterable(sequences).to_bytes(),
        min_ns=one.first * SECOND,
        max_ns=one.last * SECOND,
    )


def inventory_of(objects):
    return Inventory(MemoryStore("listed"), Picture(Manifest(blocks=list(objects)), Table()))


async def supply_of(objects):
    return await Supply.open(inventory_of(objects), ALL)


def records_of(inventory):
    """Return the records of `inventory_of`."""
    return inventory._picture.manifest.blocks
