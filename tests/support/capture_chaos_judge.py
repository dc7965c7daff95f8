"""Judges a chaos run: compares the stream's messages with everything in the store."""

import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256

from capture_chaos_load import VICTIM, digest, made

from capture.archive.manifest import ENTRIES, entry_block, is_block
from capture.archive.sequences import Sequences
from capture.errors import CaptureError
from capture.formats.choose import read_object
from capture.maintenance.sweep import read_entries
from capture.stores import open_store
from capture.verification.check import archive_picture
from capture.verification.holdings import UNDECODABLE_KEY
from natty.pulling.ordered import CaughtUp, Ordered
from natty.wire.message import Batch, parse_headers

ONLY_NOW = "Nats-Expected-Stream"  # a publisher's condition; the server keeps it in the message
SHOWN = 5  # wrongs of a kind
HASH = re.compile(r"-\d+-\d+-\d+-([0-9a-f]{8})[^/]*$")  # in a block's name, of its bytes


@dataclass
class Findings:
    """Counts, and the problems in words."""

    messages: int = 0  # in the stream
    blocks: int = 0
    files: int = 0  # of the table
    removed: int = 0  # from the stream, on purpose
    healed: int = 0  # rows that the sweep's leader read from the stream
    orphans: int = 0  # whole blocks of dead writers, which nothing names
    rows: int = 0
    duplicates: int = 0
    again: int = 0  # rows that were delivered more than once
    undecodable: int = 0
    known: Sequences = field(default_factory=Sequences)  # that the stream has or had
    wrongs: list[str] = field(default_factory=list)

    def complain(self, what, sequences):
        """Add a problem with these sequences or numbers, if there are any."""
        if found := Sequences.from_iterable(sequences):
            self.wrongs.append(f"{what}: {len(found):,} ({found.describe()})")


async def judge(natty, config, load, removed):
    """Compare the published messages, the stream and the archive, message by message.

    Messages in `removed` (digests by sequence) were removed from the stream on purpose; the archive may hold them
    unchanged.
    """
    findings, store = Findings(), open_store(config.store)
    copy = await _stream_copy(natty, load, findings)
    entries, unreadable = await read_entries(store)
    findings.wrongs += unreadable
    picture = await archive_picture(natty, config, store)
    blocks = [*picture.blocks, *picture.list_unadopted(entries)]
    findings.blocks, findings.files = len(blocks), len(picture.files)
    counts = Counter()
    for stored in (*blocks, *picture.files):
        try:
            rows = read_object(await store.get(stored.path), stored)
        except CaptureError as error:
            findings.wrongs.append(f"an object that is named can't be read: {error}")
        else:
            _compare(stored, rows, removed | copy, counts, findings)
    findings.duplicates = findings.rows - len(counts)
    findings.complain("LOST: in the stream and not in the archive", copy.keys() - counts.keys())
    findings.complain("INVENTED: in the archive and not in the stream", counts.keys() - copy.keys() - removed.keys())
    findings.known = Sequences.from_iterable([*copy, *removed])
    findings.removed = len(removed.keys() - copy.keys())
    tabled = Counter(row for stored in picture.files for row in Sequences.from_bytes(stored.sequences))
    findings.complain("twice in the table", (row for row, count in tabled.items() if count > 1))
    retired = {one.path for one in (*picture.manifest.retired, *picture.table.retired)} | picture.table.consumed_paths
    await _look_at_objects(store, {stored.path for stored in blocks} | retired, findings)
    return findings


async def _stream_copy(natty, load, findings):
    """Compare the stream's messages with the published ones, and return their {sequence: digest}."""
    copy, numbers, changed = {}, Counter(), []
    reader = Ordered(natty.jetstream, load.stream)
    async for batch in reader:
        if isinstance(batch, CaughtUp):
            reader.stop()
        if not isinstance(batch, Batch):
            continue
        columns = batch.sequences, batch.times_ns, batch.subjects, batch.header_blocks, batch.payloads
        for sequence, *cells in zip(*columns, strict=True):
            copy[sequence] = digest(*cells)
            if f"Nats-Msg-Id: {VICTIM}".encode() in cells[2]:
                continue
            number, unchanged = _as_published(load, *cells[1:])
            numbers[number] += 1
            if not unchanged:
                changed.append(sequence)
    findings.messages = len(copy)
    findings.complain("the STREAM lost what it acknowledged, by numbers", load.acknowledged - numbers.keys())
    findings.complain("the stream holds numbers that were not published", numbers.keys() - set(range(load.published)))
    findings.complain("the stream holds numbers twice", (number for number, count in numbers.items() if count > 1))
    findings.complain("the stream's copy is not what was published", changed)
    return copy


def _as_published(load, subject, block, payload):
    """Return the number of a message, and whether it equals the published message of this number."""
    headers = parse_headers(block)
    number = int(headers["Nats-Msg-Id"][0].partition("-")[2])
    one = made(load.seed, number)
    headers.pop(ONLY_NOW, None)
    wanted = {name: [value] if isinstance(value, str) else value for name, value in one.headers.items()}
    published = subject[subject.find(load.stream.encode()) :]  # a partition may stand before it
    return number, (published, headers, payload) == (f"{load.stream}.{one.key}".encode(), wanted, one.payload)


def _compare(stored, rows, copy, counts, findings):
    """Compare every row of an object with the stream's message."""
    names = "sequence", "time_ns", "subject", "header_block", "payload", "deliveries", "error"
    differ, misplaced = [], []
    for row in zip(*(rows[name].to_pylist() for name in names), strict=True):
        sequence, time_ns, subject, block, payload, deliveries, error = row
        counts[sequence] += 1
        findings.rows += 1
        findings.again += deliveries > 1
        findings.healed += deliveries == 0
        findings.undecodable += error is not None
        if copy.get(sequence) != digest(time_ns, subject.encode(), block or b"", payload):
            differ.append(sequence)
        key = UNDECODABLE_KEY if error is not None else subject.rpartition(".")[2]
        if (stored.key, error is None) != (key, _is_json(payload)):
            misplaced.append(sequence)
    findings.complain(f"{stored.path} holds other bytes than the stream", differ)
    findings.complain(f"{stored.path} holds what belongs under another key", misplaced)


def _is_json(payload):
    return payload[:1] == b"{"


async def _look_at_objects(store, named, findings):
    """Check that every visible object is complete, even unnamed ones: a block's name contains the hash of its bytes."""
    listed = [one.path for one in await store.list()]
    blocks = [path for path in listed if is_block(path)]
    dangling = {entry_block(path) for path in listed if path.startswith(ENTRIES)} - set(blocks)
    findings.wrongs += [f"an entry names a block that is missing: {path}" for path in sorted(dangling)[:SHOWN]]
    for path in blocks:
        if path not in named:
            findings.orphans += 1
            told = HASH.search(path)
            if not (told and sha256(await store.get(path)).hexdigest().startswith(told[1])):
                findings.wrongs.append(f"a part of an object is visible: {path}")
