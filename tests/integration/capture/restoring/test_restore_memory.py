"""What a restore takes of memory is bounded, whatever the size of the stream and of its messages."""

import asyncio
import os
from base64 import b64encode
from random import Random

import pytest
from patient import PATIENT
from piled import STREAM, chunks, measured, pile

from capture.archive.encryption import Keys
from natty import Natty

BOUND = 64 << 20  # bytes, above what the process had after it has restored a small stream
NOISE = os.urandom(2 << 20)


KEY = bytes(range(32))
KEYS = Keys({"k": KEY})


def payload_of(size):
    return lambda one: (b"%d " % one + NOISE[one % 1000 : one % 1000 + size])[:size]


def noise_of(size):
    return lambda one: Random(one).randbytes(size)


@pytest.mark.long
@pytest.mark.parametrize(
    ("message_bytes", "block", "keys"),
    [(1000, 350, 300), ((1 << 20) - 300, 16, 1), ((1 << 20) - 300, 4, 25)],
    ids=["three hundred blocks that overlap", "messages of 1 MiB", "messages of 1 MiB in blocks that overlap"],
)
async def test_ten_times_the_stream_takes_no_more_than_the_bound(nats_server, tmp_path, message_bytes, block, keys):
    warm, _ = await pile(tmp_path / "warm", chunks(100, 100), payload_of(100))
    for times in (1, 10):
        count = times * 8_000_000 // message_bytes
        blocks = chunks(count, max(1, block * times // 10), keys)
        store, _ = await pile(tmp_path / f"{times}", blocks, payload_of(message_bytes))
        kept, _, _, _, growth = await asyncio.to_thread(measured, nats_server, warm, store)
        async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
            await natty.delete_stream(STREAM)
        assert kept == count
        assert growth < BOUND, f"{growth:,} bytes for {times * 8} MB"


@pytest.mark.long
@pytest.mark.parametrize(
    ("block", "options"),
    [
        (16_000, {"format": "ndjson", "compression": "zstd"}),
        (16_000, {"format": "raw", "compression": "gzip"}),
        (16_000, {"format": "raw", "compression": "snappy", "keys": KEYS}),
        (16_000, {"compression": "none", "keys": KEYS}),
        (80_000, {"compression": "none", "keys": KEYS}),
    ],
    ids=["NDJSON and zstd", "raw and gzip", "raw, Snappy, encrypted", "encrypted Parquet", "one of 80 MB"],
)
async def test_blocks_of_every_format_are_read_piece_by_piece(nats_server, tmp_path, monkeypatch, block, options):
    monkeypatch.setenv("CAPTURE_KEYS", f"k:{b64encode(KEY).decode()}")
    warm, _ = await pile(tmp_path / "warm", chunks(100, 100), noise_of(100), **options)
    store, _ = await pile(tmp_path / "store", chunks(80_000, block), noise_of(1000), **options)
    largest = max(file.stat().st_size for file in (tmp_path / "store").rglob("*") if file.is_file())
    kept, _, _, _, growth = await asyncio.to_thread(measured, nats_server, warm, store)
    async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
        await natty.delete_stream(STREAM)
    assert largest > 1000 * block
    assert kept == 80_000
    assert growth < BOUND, f"{growth:,} bytes for blocks of {largest:,}"
