"""CPU of a message on its way to a block's bytes: decode, partition, add, serialise. Run it; it prints figures.

python tests/bench/bench_blocks.py [messages]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from capture.block import Limits, OpenBlocks, SealedBlock
from capture.decoders import decoder
from capture.partitioners import grouped, partitioner
from capture.writers import writer
from natty.message import Batch, RawMessage

BATCH = 500  # messages that one read of the socket brings
PAYLOAD_BYTES = 128
KEYS = 3
HEADERS = b"NATS/1.0\r\nNats-Msg-Id: id-%d\r\nContent-Type: application/json\r\n\r\n"
START_NS = 1_792_540_800_000_000_000


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


def run(raw: list[RawMessage], decode_as: str, partition_by: str, write_as: str) -> tuple[dict[str, float], int]:
    """Return microseconds of CPU a message by step, and the bytes written."""
    spent = dict.fromkeys(("decode", "partition", "add", "write"), 0.0)
    decode, partition, blocks, to_bytes = (
        decoder(decode_as),
        grouped(partitioner(partition_by)),
        OpenBlocks(Limits(max_pending=10 * len(raw), max_open_bytes=1 << 30)),
        writer(write_as),
    )

    def timed(step: str, work: Callable[[], Any]) -> Any:
        before = time.process_time()
        result = work()
        spent[step] += time.process_time() - before
        return result

    sealed: list[SealedBlock] = []
    for start in range(0, len(raw), BATCH):
        batch = Batch(raw[start : start + BATCH])
        records = timed("decode", lambda batch=batch: decode(batch))
        groups = timed("partition", lambda records=records: partition(records))
        sealed += timed("add", lambda groups=groups: blocks.add(groups, now=0.0))
    sealed += timed("add", blocks.seal_all)
    written = sum(len(timed("write", lambda block=block: to_bytes.write(block))) for block in sealed)
    return {step: seconds / len(raw) * 1e6 for step, seconds in spent.items()}, written


def main(count: int) -> None:
    run(messages(1000, json_payload), "json", "field:origin", "parquet")  # what only the first block pays
    for title, payload, headers, choices in (
        ("random bytes, raw → parquet", random_payload, b"", ("raw", "subject:1", "parquet")),
        ("the same with two headers", random_payload, HEADERS, ("raw", "subject:1", "parquet")),
        ("JSON text, raw → parquet", json_payload, b"", ("raw", "subject:1", "parquet")),
        ("JSON text, json → parquet", json_payload, b"", ("json", "field:origin", "parquet")),
        ("JSON text, raw → ndjson", json_payload, b"", ("raw", "subject:1", "ndjson")),
    ):
        spent, written = run(messages(count, payload, headers), *choices)
        steps = "  ".join(f"{step} {microseconds:.2f}" for step, microseconds in spent.items())
        print(f"{title:30} {sum(spent.values()):6.2f} µs a message   ({steps})   {written / count:.0f} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
