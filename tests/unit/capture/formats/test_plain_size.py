"""No reader decompresses more than the record of an object says, or than is possible where it says nothing."""

import os
import subprocess
import sys
from hashlib import sha256
from io import BytesIO

import msgspec
import pytest
from archived import STREAM, records, store_block
from archived import Archived as MemoryArchive
from indexed import read_whole

from capture.archive.chain import Head, latest_offline
from capture.archive.encryption import Keys
from capture.archive.index.version import Version
from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.table import Table
from capture.errors import FormatError
from capture.formats import codecs, ndjson, raw, read_object, reader, writer
from capture.ingest.block import SealedBlock
from capture.maintenance.merge.inputs import input_rows, read_columns
from capture.reading.merge import read_stored
from capture.stores import MemoryStore, open_store
from capture.verification.objects import read_archive

KEYS = Keys({"k": bytes(range(32))})
KINDS = [
    (name, compression, keys)
    for name in ("ndjson", "raw")
    for compression in ("gzip", "snappy", "zstd")
    for keys in (None, KEYS)
]


def bomb(compression, count=64):
    """So many MiB of zeros, compressed."""
    return codecs.CODECS[compression].compress(bytes(1 << 20)) * count


async def inflated(name, compression, keys, plain_bytes, count=64):
    """Store a block, and put a bomb in its place as somebody would who may write objects and records."""
    store = MemoryStore()
    one = await store_block(store, [1, 2, 3], writer(name, compression=compression, keys=keys))
    data = bomb(compression, count)
    data = keys.encrypt(data, one) if keys else data
    await store.put(one.path, data, if_absent=False)
    changed = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    if plain_bytes is not None:
        changed["plain_bytes"] = plain_bytes
    return store, msgspec.structs.replace(one, **changed), data


@pytest.mark.parametrize(("name", "compression", "keys"), KINDS)
async def test_the_entry_of_a_block_says_how_large_it_is_inside(name, compression, keys):
    store = MemoryStore()
    one = await store_block(store, range(1, 50), writer(name, compression=compression, keys=keys))
    plain = writer(name).write(SealedBlock(STREAM, "eu", 1_795_230_000, records(range(1, 50)), "age"))
    assert one.plain_bytes == len(plain)
    assert read_object(await store.get(one.path), one, keys).num_rows == 49


@pytest.mark.parametrize(("name", "compression", "keys"), KINDS)
@pytest.mark.parametrize("recorded", [True, False])
async def test_every_reader_stops_where_there_is_more_inside(monkeypatch, name, compression, keys, recorded):
    monkeypatch.setattr(codecs, "UNRECORDED_BYTES", 1000)
    monkeypatch.setattr(codecs, "LARGEST_RATIO", 1)
    store, one, data = await inflated(name, compression, keys, None if recorded else 0)
    limit = one.plain_bytes or max(1000, one.bytes)
    said = f"more than {limit:,} bytes are inside of it"
    inside = [reader(one.format, keys).open(BytesIO(data), one)]
    with pytest.raises(FormatError, match=said):
        inside[0].read()
    # A raw block that does not begin as one is refused before that.
    said = said if name == "ndjson" else f"{said}|it does not begin with"
    with pytest.raises(FormatError, match=said):
        read_object(data, one, keys)
    with pytest.raises(FormatError, match=said):
        list(input_rows(data, one, read_columns(""), keys))
    picture = Picture(Manifest(blocks=[one]), Table())
    [held] = (await read_archive(store, picture, keys=keys)).values()
    [problem] = held.problems
    assert one.path in problem
    assert "bytes are inside of it" in problem or name == "raw"

    async def look(where=None):
        return [one]

    with pytest.raises(FormatError, match=said):
        [rows async for rows in read_stored(store, look, keys=keys)]


async def test_what_an_earlier_version_stored_reads_as_before():
    store = MemoryStore()
    one = await store_block(store, range(1, 2000), writer("ndjson", compression="zstd"))
    earlier = msgspec.to_builtins(one)
    del earlier["plain_bytes"]
    known = msgspec.convert(earlier, type(one))
    assert known.plain_bytes == 0
    assert codecs.largest_plain(known) == codecs.UNRECORDED_BYTES
    assert read_object(await store.get(one.path), known).num_rows == 1999


@pytest.mark.parametrize(("name", "module"), [("ndjson", ndjson), ("raw", raw)])
def test_positions_are_read_some_at_a_time(monkeypatch, name, module):
    monkeypatch.setattr(module, "POSITIONS_BYTES", 2000)
    block = SealedBlock(STREAM, "eu", 1_795_230_000, records(range(1, 500)), "age")
    parts = list(reader(name).positions(BytesIO(writer(name).write(block)), block))
    assert len(parts) > 5
    assert [one for sequences, _ in parts for one in sequences] == list(range(1, 500))
    assert [one for _, times in parts for one in times] == block.records.times_ns


def test_a_line_that_no_message_could_be_is_refused(monkeypatch):
    monkeypatch.setattr(ndjson, "LONGEST_LINE", 5000)
    with pytest.raises(FormatError, match=r"a line of more than 5,000 bytes"):
        list(reader("ndjson").parts(BytesIO(b"x" * 20_000), None, 1000))


def test_a_raw_block_whose_lengths_no_message_could_have_is_refused():
    good = writer("raw").write(SealedBlock(STREAM, "eu", 1_795_230_000, records([1]), "age"))
    begins = good.index(b"}") + 1
    huge = good[: begins + 20] + b"\xff\xff\xff\xff" + good[begins + 24 :]
    with pytest.raises(FormatError, match="it is damaged: message 1 has 4,2"):
        list(reader("raw").positions(BytesIO(huge), None))
    with pytest.raises(FormatError, match="it is damaged: it begins with"):
        list(reader("raw").positions(BytesIO(raw.MAGIC + b"\xff\xff\xff\xff"), None))


MEASURED = """
import pathlib, re, sys
sys.argv = ["capture", *sys.argv[1:]]
from capture.cli import main
try:
    main()
finally:
    # ru_maxrss begins with that of the process which started this one
    status = pathlib.Path("/proc/self/status").read_text()
    print("peak", int(re.search(r"VmHWM:\\s*([0-9]+) kB", status)[1]) * 1024, file=sys.stderr)
"""


@pytest.mark.long
@pytest.mark.parametrize("command", ["cat", "verify --offline"])
async def test_a_bomb_of_gigabytes_takes_no_memory(tmp_path, command):
    archived = await MemoryArchive(folder=tmp_path / "lake").make()
    store = open_store(str(tmp_path / "lake"))
    data = bomb("zstd", 4096)
    head = await latest_offline(store, Manifest)
    manifest = await read_whole(store, head, Manifest)
    changed = [
        msgspec.structs.replace(one, bytes=len(data), sha256=sha256(data).hexdigest(), plain_bytes=1 << 40)
        for one in manifest.blocks
    ]
    assert all(one.format == "ndjson.zst" for one in changed)
    for one in changed:
        await store.put(one.path, data, if_absent=False)
    await store.put(
        head.path,
        msgspec.json.encode(msgspec.structs.replace(manifest, blocks=changed, index=Version())),
        if_absent=False,
    )
    assert isinstance(head, Head)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *command.split(), "--store", archived.store.url, "--stream", STREAM],
        env={name: value for name, value in os.environ.items() if not name.startswith("CAPTURE_")},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode in (1, 3), done
    peak = int(done.stderr.rsplit("peak ", 1)[1])
    assert peak < 1200 << 20, f"{peak:,} bytes of 4 GiB of zeros in {len(changed)} objects"
