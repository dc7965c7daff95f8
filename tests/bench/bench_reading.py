"""What readers of an archive cost, by the number of its objects: `python tests/bench/bench_reading.py [OBJECTS …]`.

The objects have 1,000 messages each and stand in the table, 100 of them in each hour; with 100 keys, neighbouring
sequences have different keys. Those of one hour are Parquet files, the others are empty files of the recorded size.
Each figure is of a process of its own: CPU time, time by the clock, and memory beyond what is in use after the imports.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
from bench_index import MESSAGES, record, records, write_index

from capture.archive import chain
from capture.archive.identity import claim
from capture.archive.index.tree import Index
from capture.archive.manifest import Stored
from capture.archive.recording import Configuration, Recording, StreamRecord
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.cli import cat, ls, main, sql
from capture.config.settings import CaptureConfig
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records
from capture.reading import duck
from capture.restoring import rebuild, survey
from capture.restoring.past import Window
from capture.restoring.plan import EXACT, Options, Target
from capture.stores.file import FileStore
from capture.testing import HeadState, MemoryHead
from capture.verification.fingerprints import Existing

SIZES = (100_000, 1_000_000)
KEYS = (1, 100)
EACH_HOUR = 100
HOUR_NS = 3600 * 10**9
STEPS = {
    "plan": "plan of a whole restore",
    "plan index": "the same, by the index alone",
    "plan hour": "plan, one hour",
    "plan part": "plan, sequences of an hour",
    "plan subject": "plan, a subject of an hour",
    "ls": "capture ls",
    "ls json": "capture ls --json",
    "sql hour": "capture sql, one hour",
    "sql sequences": "capture sql, 1,000 sequences",
    "cat hour": "capture cat, one hour",
    "cat sequences": "capture cat, 1,000 sequences",
}


class Middle:
    """The hour in the middle of the archive, whose objects are there."""

    def __init__(self, objects: int) -> None:
        self.hour = objects // EACH_HOUR // 2
        self.first = self.hour * EACH_HOUR * MESSAGES + 1
        self.last = (self.hour + 1) * EACH_HOUR * MESSAGES
        self.since_ns, self.until_ns = self.hour * HOUR_NS, (self.hour + 1) * HOUR_NS


def written(one: Stored, folder: Path) -> Stored:
    """Write the object of a record, and return the record of what was written."""
    held = list(Sequences.from_bytes(one.sequences))
    count = len(held)
    block = SealedBlock(
        "S", one.key, one.interval,
        Records(
            "S", held, [one.min_ns + 30_000_000 * (number % 100_000) for number in held],
            [b"s.%d" % (number % 10) for number in held], [b""] * count, [b"%d" % number for number in held],
            [1] * count, [b"$JS.ACK"] * count, [None] * count,
        ),
        "stop",
    )  # fmt: skip
    made_by = writer("parquet")
    data = made_by.write(block)
    (folder / one.path).write_bytes(data)
    times = block.records.times_ns
    return msgspec.structs.replace(
        one, bytes=len(data), sha256=sha256(data).hexdigest(), format=made_by.format,
        min_ns=min(times), max_ns=max(times),
    )  # fmt: skip


def objects_of(folder: Path, objects: int, keys: int) -> Iterator[Stored]:
    """Yield the records of an archive, and make their files."""
    middle = Middle(objects)
    for one in records(objects, keys, objects // EACH_HOUR):
        file = folder / one.path
        file.parent.mkdir(parents=True, exist_ok=True)
        if one.interval == 3600 * middle.hour:
            yield written(one, folder)
            continue
        descriptor = os.open(file, os.O_CREAT | os.O_WRONLY, 0o644)
        os.truncate(descriptor, one.bytes)
        os.close(descriptor)
        yield one


async def build(folder: Path, objects: int, keys: int) -> None:
    """Make the archive."""
    store, pointer = FileStore(folder), MemoryHead(1, HeadState())
    version = await write_index(folder, Index(store, Table.PAGES), objects_of(folder, objects, keys))
    last = objects * MESSAGES
    await chain.commit(store, pointer, None, Table(index=version))
    await claim(store, "S", "S", "2026-11-21T03:00:00Z")
    config = {"name": "S", "subjects": ["s.>"], "retention": "limits", "storage": "file", "max_age": 0}
    state = {"messages": last, "bytes": last * 100, "first_seq": 1, "last_seq": last}
    known = StreamRecord(
        created="2026-11-21T03:00:00Z", state=state,
        configurations=[Configuration(since=0.0, first_seq=1, last_seq=last, config=config)],
    )  # fmt: skip
    recording = Recording(archive="S", streams={"S": known}, created=1e9, leader="node")
    await chain.commit(store, MemoryHead(1, HeadState()), None, recording)


async def plan(folder: str, window: Window) -> None:
    """Plan a restore, without a server."""

    async def look(_: Any) -> Target:
        return Target(version=EXACT, streams={})

    rebuild.look_at = look
    config = CaptureConfig(stream="S", store=folder)
    nobody: Any = None
    found = await rebuild.prepare(nobody, config, FileStore(Path(folder)), Options(window=window), offline=True)
    assert found.messages, found


def carry_out(folder: str, objects: int, what: str) -> None:
    """Do one thing in this process."""
    middle = Middle(objects)
    part = {"start": middle.first, "to_sequence": middle.last}
    where = {
        "hour": f"time_ns >= {middle.since_ns} AND time_ns < {middle.until_ns}",
        "sequences": f"sequence BETWEEN {middle.first} AND {middle.first + 999}",
    }
    if what == "plan index":  # without a listing of the store, whose folders hold one object each here
        nothing: Any = Existing()
        nothing.has_size = lambda path, size: True
        survey.Existing = SimpleNamespace(read=AsyncMock(return_value=nothing))
    if what.startswith("plan"):
        windows = {
            "plan": Window(),
            "plan index": Window(),
            "plan hour": Window(start_ns=middle.since_ns, at_ns=middle.until_ns - 1),
            "plan part": Window(**part),
            "plan subject": Window(**part, subjects=("s.7",)),
        }
        asyncio.run(plan(folder, windows[what]))
        return
    moments = [
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one // 10**9)) for one in (middle.since_ns, middle.until_ns)
    ]
    query = "SELECT count(*), min(sequence), max(sequence) FROM messages WHERE "
    sys.argv[1:] = {
        "ls": ["ls", "--store", folder],
        "ls json": ["ls", "--store", folder, "--json"],
        "sql hour": ["sql", "--store", folder, query + where["hour"]],
        "sql sequences": ["sql", "--store", folder, query + where["sequences"]],
        "cat hour": ["cat", folder, "--since", moments[0], "--until", moments[1]],
        "cat sequences": ["cat", folder, "--from", str(middle.first), "--to", str(middle.first + 999)],
    }[what]
    with suppress(SystemExit):
        main()


def measure(folder: str, objects: int, what: str) -> dict[str, float]:
    """Return the cost of one thing in this process."""
    record(0, 0, 1, 0)  # what is imported late, and compiled once
    assert all((ls, cat, sql, duck))
    before, cpu, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), time.monotonic()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        carry_out(folder, objects, what)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "cpu": time.process_time() - cpu, "clock": time.monotonic() - began, "MB": (peak - before) / 1024
    }  # fmt: skip


def run(*arguments: object) -> dict[str, float] | str:
    """Return the figures of another process, or its error."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def show(folder: str, objects: int, keys: int) -> None:
    """Print the figures of one archive."""
    print(f"{objects:,} objects, {keys:,} {'keys' if keys > 1 else 'key'}", flush=True)
    if not list(Path(folder).iterdir()):
        run(folder, objects, "build", keys)
    for what, name in STEPS.items():
        one = run(folder, objects, what)
        said = (
            one
            if isinstance(one, str)
            else f"{one['cpu']:8.2f} s of CPU {one['clock']:8.2f} s by the clock {one['MB']:8,.0f} MB"
        )
        print(f"  {name:<30} {said}", flush=True)


def child(folder: str, objects: str, what: str, keys: str = "") -> dict[str, float]:
    """Build an archive, or measure one thing."""
    if what == "build":
        asyncio.run(build(Path(folder), int(objects), int(keys)))
        return {}
    return measure(folder, int(objects), what)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(*sys.argv[2:])))
    else:
        for size in [int(one) for one in sys.argv[1:]] or SIZES:
            for number_of_keys in KEYS:
                with tempfile.TemporaryDirectory() as place:
                    show(place, size, number_of_keys)
