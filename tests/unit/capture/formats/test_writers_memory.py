from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from natty.wire.message import Batch

PAYLOAD = random.Random(1).randbytes(10_000)
MESSAGES = 20


@pytest.mark.parametrize("form", ["parquet", "ndjson", "csv", "raw"])
def test_a_writer_keeps_nothing_of_what_it_wrote(form: str) -> None:
    raw = [(b"a.b", b"$JS.ACK.S.c.1.%d.%d.1000.0" % (n, n), b"", PAYLOAD) for n in range(MESSAGES)]
    records: Records[None] = Records.of(Batch(raw))
    block, write = SealedBlock("S", "key", 0, records, "age"), writer(form).write
    write(block)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(5):
            write(block)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MESSAGES * len(PAYLOAD)
