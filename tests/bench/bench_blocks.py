"""CPU of a message until it is in a block's bytes: decode, partition, add, serialise. Prints figures.

python tests/bench/bench_blocks.py [messages]

After the steps: the memory and disk of open blocks, with few keys and many; the costs of each format and compression,
and of encryption and typed columns.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sized
from typing import Any

import msgspec

from capture.archive.encryption import Keys
from capture.decoders import Decoding, decoder, json_as
from capture.formats import reader, writer
from capture.ingest.block import INTERVAL, Limits, OpenBlocks, SealedBlock, Writer
from capture.ingest.pipeline import group
from capture.ingest.spill import Spill
from capture.partitioners import partitioner
from natty.wire.message import Batch, RawMessage

BATCH = 500  # messages that one read of the socket brings
PAYLOAD_BYTES = 128
KEYS = 3
HEADERS = b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\nContent-Type: application/json\r\n\r\n"
START_NS = 1_792_540_800_000_000_000


class Flight(msgspec.Struct):
    origin: str
    flight: int
    delay: int
    carrier: str
    tail: str


def messages(count: int, payload: Callable[[int], bytes], headers: bytes = b"") -> list[RawMessage]:
    """Return messages on KEYS subjects, as a consumer would deliver them; `headers` may hold one %d."""
    return [
        (
            b"flights.%s.departed" % (b"EWR", b"JFK", b"LGA")[index % KEYS],
            b"$JS.ACK.FLIGHTS.capture.1.%d.%d.%d.%d" % (index + 1, index + 1, START_NS + index * 1000, count - index),
            headers % index if headers else b"",
            payload(index),
        )
        for index in range(count)
    ]


def random_payload(_: int) -> bytes:
    return os.urandom(PAYLOAD_BYTES)


def json_payload(index: int) -> bytes:
    text = b'{"origin":"EWR","flight":%d,"delay":%d,"carrier":"UA","tail":"N%06d"}' % (index, index % 97, index % 5000)
    return text.ljust(PAYLOAD_BYTES)


def late_payload(index: int) -> bytes:
    """Every hundredth has a delay that is no number."""
    return json_payload(index) if index % 100 else b'{"origin":"EWR","delay":"late"}'.ljust(PAYLOAD_BYTES)


def wide_payload(index: int) -> bytes:
    """Every hundredth has a delay that is no whole number."""
    return json_payload(index) if index % 100 else b'{"origin":"EWR","delay":1.5}'.ljust(PAYLOAD_BYTES)


def blocks_of(
    raw: list[RawMessage], decode: Decoding[Any], partition_by: str
) -> tuple[list[SealedBlock], dict[str, float]]:
    """Return the sealed blocks, and microseconds of CPU a message by step."""
    spent = dict.fromkeys(("decode", "partition", "add"), 0.0)
    partition = partitioner(partition_by)
    blocks = OpenBlocks(Limits(max_pending=10 * len(raw), max_open_bytes=1 << 30))

    def timed(step: str, work: Callable[[], Any]) -> Any:
        before = time.process_time()
        result = work()
        spent[step] += time.process_time() - before
        return result

    sealed: list[SealedBlock] = []
    for start in range(0, len(raw), BATCH):
        batch = Batch(raw[start : start + BATCH])
        records = timed("decode", lambda batch=batch: decode(batch))
        groups = timed("partition", lambda records=records: group(records, partition(records), INTERVAL))
        sealed += timed("add", lambda groups=groups: blocks.add(groups, now=0.0))
    sealed += timed("add", blocks.seal_all)
    return sealed, {step: seconds / len(raw) * 1e6 for step, seconds in spent.items()}


def cost(work: Callable[[SealedBlock], Sized], sealed: list[SealedBlock], rounds: int = 3) -> tuple[float, float]:
    """Return microseconds of CPU a message, the best of some rounds, and bytes a message."""
    count = sum(block.count for block in sealed)
    best = float("inf")
    for _ in range(rounds):
        before = time.process_time()
        written = sum(len(work(block)) for block in sealed)
        best = min(best, time.process_time() - before)
    return best / count * 1e6, written / count


def steps(count: int) -> None:
    print("From a batch to bytes")
    for title, payload, headers, (decode_as, partition_by, write_as) in (
        ("random bytes, raw → parquet", random_payload, b"", ("raw", "subject:1", "parquet")),
        ("the same with two headers", random_payload, HEADERS, ("raw", "subject:1", "parquet")),
        ("JSON text, raw → parquet", json_payload, b"", ("raw", "subject:1", "parquet")),
        ("JSON text, json → parquet", json_payload, b"", ("json", "field:origin", "parquet")),
        ("JSON text, raw → ndjson", json_payload, b"", ("raw", "subject:1", "ndjson")),
    ):
        sealed, spent = blocks_of(messages(count, payload, headers), decoder(decode_as), partition_by)
        spent["write"], written = cost(writer(write_as).write, sealed, rounds=1)
        shown = "  ".join(f"{step} {microseconds:.2f}" for step, microseconds in spent.items())
        print(f"  {title:30} {sum(spent.values()):6.2f} µs a message   ({shown})   {written:.0f} bytes")


def buffers(count: int) -> None:
    print("Open blocks, JSON text; a message")
    decode, partition = decoder("raw"), partitioner("subject:1")
    for keys in (10, 10_000):
        rest = (raw[1:] for raw in messages(count, json_payload))
        raw = [(b"flights.k%d" % (index % keys), *one) for index, one in enumerate(rest)]
        decoded = [decode(Batch(raw[start : start + BATCH])) for start in range(0, count, BATCH)]
        batches = [group(records, partition(records), INTERVAL) for records in decoded]
        for kind in ("memory", "disk"):
            with tempfile.TemporaryDirectory() as folder:
                spill = Spill(folder) if kind == "disk" else None
                blocks, sealed = OpenBlocks(Limits(max_pending=10 * count, max_open_bytes=1 << 30), spill), []
                before = time.process_time()
                for groups in batches:
                    sealed += blocks.add(groups, now=0.0)
                    if spill:
                        spill.write()
                added = time.process_time()
                assert sum(len(block.records) for block in sealed + blocks.seal_all()) == count
                adding, sealing = (added - before) / count * 1e6, (time.process_time() - added) / count * 1e6
                print(f"  {keys:6,} keys, {kind:6}   add {adding:6.2f} µs   seal and read {sealing:6.2f} µs")


def formats(sealed: list[SealedBlock]) -> None:
    print("Every format and compression, JSON text with two headers; a message")
    keys = Keys({"bench": os.urandom(32)})
    for name in ("parquet", "ndjson", "raw", "csv"):
        for compression in ("none", "gzip", "snappy", "zstd"):
            wanted = writer(name, compression=compression, decode=decoder("raw"))
            line(wanted, sealed, f"{name} {compression}")
    for name in ("parquet", "raw"):
        line(writer(name, keys=keys), sealed, f"{name}, encrypted", keys)


def line(wanted: Writer, sealed: list[SealedBlock], title: str, keys: Keys | None = None) -> float:
    writing, size = cost(wanted.write, sealed)
    objects = {block.first: wanted.write(block) for block in sealed}
    back = reader(wanted.format, keys)
    reading, _ = cost(lambda block: range(len(back.read(objects[block.first], block))), sealed)
    print(f"  {title:28} write {writing:6.2f} µs   read {reading:6.2f} µs   {size:6.1f} bytes")
    return writing


def typed(count: int) -> None:
    print("Typed columns, JSON text → parquet")
    shape = Decoding(decoder("json").decode, shape=Flight, is_json=True)
    sealed, _ = blocks_of(messages(count, json_payload), decoder("raw"), "subject:1")
    plain = line(writer("parquet"), sealed, "without")
    of_payload = line(writer("parquet", decode=shape), sealed, "from JSON payloads")
    values = Decoding(json_as(Flight).decode, shape=Flight)
    line(writer("parquet", decode=values), sealed, "from a decoder's values")
    for title, payload in (("1 % of wider numbers", wide_payload), ("1 % of another type", late_payload)):
        odd, _ = blocks_of(messages(count, payload), decoder("raw"), "subject:1")
        line(writer("parquet", decode=shape), odd, title)
    print(f"  five typed columns add {of_payload - plain:.2f} µs, {of_payload / plain - 1:.0%} of the writing")
    rows = decoder("json"), json_as(Flight)
    for title, decode in zip(("plain JSON", "JSON into a Struct"), rows, strict=True):
        spent = blocks_of(messages(count, json_payload), decode, "field:origin")[1]
        print(f"  decoding {title:20} {spent['decode']:.2f} µs, partitioning by a field {spent['partition']:.2f} µs")


def main(count: int) -> None:
    logging.disable()  # of what does not fit, that is
    small, _ = blocks_of(messages(1000, json_payload), decoder("json"), "field:origin")
    cost(writer("parquet").write, small)  # what only the first block pays
    steps(count)
    buffers(count)
    formats(blocks_of(messages(count // 4, json_payload, HEADERS), decoder("raw"), "subject:1")[0])
    typed(count // 4)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
