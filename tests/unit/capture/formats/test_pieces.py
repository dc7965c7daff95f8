"""A stored object in pieces: the same rows whatever is around them, one piece in memory, damage in a sentence."""

from __future__ import annotations

import os
import tracemalloc
from io import BytesIO
from pathlib import Path

import cramjam
import pyarrow as pa
import pytest
from sealed import HEADERS, block, stored_as

from capture.archive.encryption import Keys
from capture.errors import CaptureError, FormatError
from capture.formats import reader, writer
from capture.formats.batches import pieces
from capture.formats.codecs import CODECS, IDENTIFIER
from capture.formats.envelope import to_table
from capture.ingest.block import SealedBlock

KEYS = Keys({"2026": bytes(range(32))})
CODED = [(name, compression) for name in ("ndjson", "raw") for compression in ("", "gzip", "snappy", "zstd")]
EVERY = [("parquet", ""), ("parquet", "none"), *CODED]
both = pytest.mark.parametrize("keys", [None, KEYS], ids=["plain", "encrypted"])
every = pytest.mark.parametrize(("name", "compression"), EVERY)


def mixed() -> SealedBlock:
    sizes = [0, 1, 30, 200_000, 7, 5000, 3, 999, 1000, 1001, 0]
    return block(*((b"a.b", HEADERS if size % 2 else b"", os.urandom(size)) for size in sizes), errors={2: "no JSON"})


@both
@every
@pytest.mark.parametrize("piece_bytes", [100, 1000, 1 << 20])
@pytest.mark.parametrize("in_memory", [True, False], ids=["bytes", "file"])
def test_the_rows_are_the_same_however_they_are_cut(
    name: str, compression: str, keys: Keys | None, piece_bytes: int, in_memory: bool
) -> None:
    kept, wanted = mixed(), writer(name, compression=compression, keys=keys)
    data = wanted.write(kept)
    source = data if in_memory else BytesIO(data)
    found = list(pieces(source, stored_as(data, kept, wanted.format), keys, piece_bytes=piece_bytes))
    assert pa.Table.from_batches(found).to_pylist() == to_table(kept.records).to_pylist()
    assert all(piece.nbytes <= piece_bytes or len(piece) == 1 for piece in found)


@pytest.mark.parametrize("name", ["ndjson", "parquet"])
@pytest.mark.parametrize("piece_bytes", [1, 1 << 20], ids=["between two pieces", "within a piece"])
def test_rows_that_are_not_in_order_of_their_sequences_are_refused(name: str, piece_bytes: int) -> None:
    kept, wanted = block(*((b"a.b", b"", b"%d" % number) for number in range(4))), writer(name)
    kept.records.sequences[:] = [100, 102, 101, 103]
    data = wanted.write(kept)
    with pytest.raises(FormatError, match="its rows are not in order of their sequences"):
        list(pieces(data, stored_as(data, kept, wanted.format), piece_bytes=piece_bytes))


@both
@every
def test_what_is_no_block_is_one_clear_sentence(name: str, compression: str, keys: Keys | None) -> None:
    kept, wanted = mixed(), writer(name, compression=compression, keys=keys)
    good = wanted.write(kept)
    for bad in (b"", b"nonsense", good[: len(good) // 2], good[: len(good) - 3], good + b"more"):
        with pytest.raises(CaptureError, match=f"^blocks/FLIGHTS.{wanted.format}(: | can't be read as )") as caught:
            list(pieces(BytesIO(bad), stored_as(bad, kept, wanted.format), keys, piece_bytes=1000))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "compression"), EVERY)
def test_no_row_of_an_encrypted_object_is_given_before_all_of_it_was_checked(name: str, compression: str) -> None:
    kept, wanted = mixed(), writer(name, compression=compression, keys=KEYS)
    good = wanted.write(kept)
    bad = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(CaptureError, match="it was changed or cut off after it was encrypted"):
        next(pieces(BytesIO(bad), stored_as(bad, kept, wanted.format), KEYS))


def test_raw_says_what_is_wrong_with_its_messages() -> None:
    good = writer("raw").write(mixed())
    with pytest.raises(FormatError, match="it continues after its 11 messages"):
        list(reader("raw").parts(BytesIO(good + b"x"), mixed(), 1000))
    with pytest.raises(FormatError, match="it is cut off: of its 11 messages the last 1 is missing"):
        list(reader("raw").parts(BytesIO(good[:-1]), mixed(), 1000))


def test_framed_snappy_is_read_with_whatever_others_may_write_into_it() -> None:
    data = os.urandom(100_000) + bytes(200_000)
    framed = bytes(cramjam.snappy.compress(data))
    padding = b"\xfe\x03\x00\x00abc"
    opened = CODECS["snappy"].open
    assert opened(BytesIO(framed)).read() == data
    assert opened(BytesIO(framed + padding + framed + padding)).read() == data + data
    assert opened(BytesIO(IDENTIFIER)).read() == b""
    for cut in (framed[:-1], framed + b"\x00"):
        with pytest.raises(FormatError, match="it is cut off"):
            opened(BytesIO(cut)).read()
    for bad in (b"", framed[10:], framed[:50] + bytes([framed[50] ^ 1]) + framed[51:]):
        with pytest.raises((FormatError, cramjam.DecompressionError)):
            opened(BytesIO(bad)).read()


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "compression", "keys"),
    [
        ("ndjson", "", None),
        ("ndjson", "zstd", None),
        ("ndjson", "snappy", KEYS),
        ("raw", "gzip", None),
        ("raw", "", KEYS),
        ("parquet", "none", KEYS),
    ],
)
@pytest.mark.long
def test_a_piece_is_in_memory_and_not_the_object(
    name: str, compression: str, keys: Keys | None, tmp_path: Path
) -> None:
    payload, count = os.urandom(20_000), 1600
    kept, wanted = block(*[(b"a", b"", payload)] * count), writer(name, compression=compression, keys=keys)
    data = wanted.write(kept)
    stored, path = stored_as(data, kept, wanted.format), tmp_path / "object"
    path.write_bytes(data)
    del data
    pool, arrow, total = pa.default_memory_pool(), 0, 0
    before = pool.bytes_allocated()
    with path.open("rb") as file:
        tracemalloc.start()
        for piece in pieces(file, stored, keys):
            total += len(piece)
            arrow = max(arrow, pool.bytes_allocated() - before)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert total == count
    assert python < 12 << 20, f"Python had {python:,} bytes of {count * len(payload):,}"
    assert arrow < 12 << 20, f"Arrow had {arrow:,} bytes of {count * len(payload):,}"
