"""Blocks of every format, as nodes write them, and groups of them."""

import hashlib
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.decoders import typed
from capture.decoders.json import decode as json
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from capture.maintenance.engine import FileGroup

KEYS = Keys({"ours": bytes(range(32))})
KEY_LINE = "ours:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
HOUR = 1_795_230_000
_names = count(1)


async def block(
    store, sequences, *, format="parquet", compression="", keys=None, columns=None, payload=None, ids=None, deliveries=1
):
    """Store a block of these messages; `columns` are its decoder's, `payload` and `ids` return a message's values."""
    payload = payload or (lambda number: b'{"n": %d}' % number)
    header = b"NATS/1.0\r\nNats-Msg-Id: %s\r\nColour: red\r\n\r\n"
    records = Records(
        stream="ORDERS",
        sequences=list(sequences),
        times_ns=[HOUR * 10**9 + number for number in sequences],
        subjects=[b"orders.%d" % (number % 3) for number in sequences],
        header_blocks=[header % ids(number) if ids and ids(number) else b"" for number in sequences],
        payloads=[payload(number) for number in sequences],
        deliveries=[deliveries] * len(sequences),
        replies=[b""] * len(sequences),
        values=[None] * len(sequences),
    )
    decode = None if columns is None else typed(pa.schema(columns))(json)
    wanted = writer(format, compression=compression, keys=keys, decode=decode)
    sealed = SealedBlock("ORDERS", "eu", HOUR, records, "stop")
    data = wanted.write(sealed)
    number = next(_names)
    path = f"blocks/stream=ORDERS/key=eu/date=2026-11-21/hour=03/{number}.{wanted.format}"
    await store.put(path, data)
    return Stored(
        path=path,
        stream="ORDERS",
        key="eu",
        interval=HOUR,
        first=min(sequences),
        last=max(sequences),
        count=len(sequences),
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        format=wanted.format,
        sequences=Sequences.from_iterable(sequences).to_bytes(),
        stored_ns=number,
    )


async def every_format(store):
    """Store blocks of every format that the table accepts, each way around; some messages are in several blocks."""
    choices = [
        {},
        {"compression": "snappy"},
        {"keys": KEYS},
        *({"format": "ndjson", "compression": one} for one in ("none", "gzip", "snappy", "zstd")),
        *({"format": "raw", "compression": one} for one in ("none", "gzip", "snappy", "zstd")),
        {"format": "ndjson", "compression": "zstd", "keys": KEYS},
        {"format": "raw", "keys": KEYS},
    ]
    return [
        await block(
            store,
            range(1 + 10 * number, 15 + 10 * number),
            payload=lambda sequence: bytes([sequence % 256, 0xFF]) if sequence % 2 else "ä\n".encode(),
            ids=lambda sequence: sequence % 3 and b"id-%d" % sequence,
            deliveries=len(choices) - number,
            **choice,
        )
        for number, choice in enumerate(choices)
    ]


async def evolving(store):
    """Store blocks with different typed columns: one is added, one widened, one conflicts, one has a name of ours."""
    numbers = {"id": pa.int32(), "total": pa.float32(), "key": pa.string(), "when": pa.timestamp("us", "UTC")}
    old = await block(
        store, [1, 2], columns=numbers,
        payload=lambda n: b'{"id": %d, "total": 0.5, "key": "k%d", "when": "2026-01-01T00:00:00Z"}' % (n, n),
    )  # fmt: skip
    wider = {"id": pa.int64(), "total": pa.float64(), "more": pa.list_(pa.struct([("a", pa.int64())]))}
    new = await block(
        store, [3, 4], columns=wider,
        payload=lambda n: b'{"id": %d, "total": 0.1, "more": [{"a": %d}]}' % (2**40 + n, n),
    )  # fmt: skip
    text = await block(
        store, [5], columns={"id": pa.string(), "total": pa.float64()}, payload=lambda n: b'{"id": "x", "total": 1.5}'
    )
    plain = await block(store, [6, 7], format="ndjson")
    return [old, new, text, plain]


def group(inputs, *, ending="", **more):
    """Return a group of these inputs, to be merged into a file with a new name."""
    output = f"table/stream=ORDERS/key=eu/date=2026-11-21/hour=03/c-1-{next(_names):032x}.parquet{ending}"
    return FileGroup(stream="ORDERS", key="eu", interval=HOUR, inputs=list(inputs), output=output, **more)


async def table_of(store, stored):
    """Return the rows of a plain table file."""
    return pq.read_table(pa.BufferReader(await store.get(stored.path)))
