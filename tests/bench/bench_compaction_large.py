"""Far more input than memory: `python tests/bench/bench_compaction_large.py [GB [MiB of the driver]]`, 3 and 512.

`capture compact` merges NDJSON blocks of that size in one run, and the bench prints the peaks of all its processes.
Then it checks that the table holds each message once. The disk must hold a seventh more than that, and two groups.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from bench_compaction_start import COMMAND, DRIVER, JVM, WORKERS, Nobody, below
from bench_table import print_machine, print_table

from capture.formats import writer
from capture.formats.envelope import SCHEMA
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.record import Records
from capture.stores import open_store
from natty import Natty
from natty.testing import NatsServer

sys.path.append(str(Path(__file__).parents[1] / "support"))
from electing import vacated_archive

STREAM, NOW = "LARGE", 1_795_230_000
ROWS = 8_000  # of a block
NOISE, FILLER = 100, "a line of a log, as they all look alike; " * 50
REDELIVERED = 160  # of each block, by the block before it
LOOK_EVERY = 1.0  # seconds
GB = 10**9


def main(gigabytes: float = 3.0, memory: int = 512) -> None:
    print_machine(f"{gigabytes:g} GB of NDJSON, uncompressed, and {memory} MiB for Spark's driver")
    with tempfile.TemporaryDirectory() as name, NatsServer() as server:
        folder = Path(name)
        messages, size, blocks = asyncio.run(_store_blocks(folder / "lake", server, int(gigabytes * GB)))
        print(
            f"{blocks:,} blocks of {size / blocks / 1e6:.1f} MB, {messages:,} messages, {size / GB:.1f} GB", flush=True
        )
        _configure(folder, server, memory, 2 * size)
        peaks, seconds = _compact(folder)
        rows = [[kind, f"{peaks.get(kind, 0) / 1024:,.0f}"] for kind in (COMMAND, DRIVER, JVM, WORKERS)]
        print_table("the most memory that each kind of process had at once, by PSS", ["", "MiB"], rows)
        files = sorted((folder / "lake" / "table").rglob("*.parquet"))
        assert _messages_of(files) == messages
        left = sum(one.stat().st_size for one in files)
        print(f"{size / GB:.1f} GB became {len(files)} files of {left / GB:.1f} GB in {seconds:.0f} s; "
              f"each of the {messages:,} messages is in them once")  # fmt: skip


async def _store_blocks(lake: Path, server: NatsServer, wanted: int) -> tuple[int, int, int]:
    async with Natty(**server.connect_options()) as natty:
        await natty.create_stream(STREAM, subjects=["large.>"])
        await vacated_archive(natty, STREAM)  # else the very first leaders wait out a lease
    committer = Committer(open_store(str(lake)), writer("ndjson", compression=""), Nobody())
    chance, first, stored, blocks = random.Random(1), 1, 0, 0
    filler = FILLER.encode()
    while stored < wanted:
        sequences = list(range(max(1, first - REDELIVERED), first + ROWS))
        payloads = [b"%d %s %s" % (one, chance.randbytes(NOISE).hex().encode(), filler) for one in sequences]
        count = len(sequences)
        records: Records[None] = Records(
            STREAM, sequences, [NOW * GB + one for one in sequences], [b"large.%d" % (one % 10) for one in sequences],
            [b""] * count, payloads, [1] * count, [b""] * count, [None] * count,
        )  # fmt: skip
        block = await committer.commit(SealedBlock(STREAM, "k", NOW, records, "messages"))
        first, stored, blocks = first + ROWS, stored + block.bytes, blocks + 1
    return first - 1, stored, blocks


def _configure(folder: Path, server: NatsServer, memory: int, all_of_it: int) -> None:
    options = server.connect_options()
    files = [f'{name} = "{options[name]}"' for name in ("tls_ca", "tls_cert", "tls_key")]
    (folder / "capture.toml").write_text("\n".join([
        f'stream = "{STREAM}"', f'store = "{folder / "lake"}"', "[nats]", f"servers = {options['servers']}", *files,
        "[compaction]", f"max_bytes = {all_of_it}", "[spark]", f'driver_memory = "{memory}m"',
    ]))  # fmt: skip


def _compact(folder: Path) -> tuple[dict[str, int], float]:
    """Run the command; return the most KiB that each kind of process had, and the seconds that it took."""
    began, peaks = time.perf_counter(), dict[str, int]()
    command = [sys.executable, "-m", "capture", "compact", "--config", str(folder / "capture.toml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        now = dict[str, int]()
        for one, (kind, _) in below(process.pid).items():
            now[kind] = now.get(kind, 0) + _share(one)
        peaks = {kind: max(peaks.get(kind, 0), now.get(kind, 0)) for kind in peaks | now}
        time.sleep(LOOK_EVERY)
    print((process.stdout or sys.stdin).read(), end="")
    assert process.returncode == 0
    return peaks, time.perf_counter() - began


def _share(process: int) -> int:
    """The KiB of memory that are a process's own, and its part of what it shares with others."""
    try:
        return int(Path(f"/proc/{process}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    except OSError:  # it has ended
        return 0


def _messages_of(files: list[Path]) -> int:
    """How many messages are in the files. Together they must hold each sequence from 1 on once, and each in order."""
    last = 0
    for first, path in sorted(
        (pq.ParquetFile(path).metadata.row_group(0).column(SCHEMA.names.index("sequence")).statistics.min, path)
        for path in files
    ):
        assert first == last + 1
        for batch in pq.ParquetFile(path).iter_batches(columns=["sequence"]):
            found = batch.column(0).to_numpy()
            assert (found[0], found[-1]) == (last + 1, last + len(found))
            assert (found[1:] > found[:-1]).all()
            last = int(found[-1])
    return last


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("the memory of other processes is read from /proc")
    main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))
