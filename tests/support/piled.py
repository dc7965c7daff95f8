"""Large archives of a stream that never existed, written as nodes write them, and the cost of restoring one.

Run as a program, `piled.py CONNECTION WARM STORE`, it restores a small archive, then another one, and prints the
messages, seconds, CPU seconds, the peak memory of the process in bytes, and how much it grew.
"""

import asyncio
import subprocess
import sys

STREAM, CREATED, NOW = "PILED", "2026-11-21T03:00:00Z", 1_795_230_000
AT_ONCE = 16  # blocks: each waits for the disk
CONFIG = {
    "name": STREAM, "subjects": ["piled.>"], "retention": "limits", "storage": "file", "num_replicas": 1,
    "max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msg_size": -1, "discard": "old",
}  # fmt: skip


def chunks(messages, block, keys=1):
    """Yield the sequences of each block: each has `block` messages, and `keys` keys take turns."""
    for start in range(1, messages + 1, block * keys):
        for key in range(keys):
            if mine := range(start + key, min(start + block * keys, messages + 1), keys):
                yield mine


async def pile(folder, blocks, payload, **options):
    """Create an archive of adopted blocks of these sequences, with the stream's record; return its store."""
    from archived import Settled

    from capture.archive import chain
    from capture.archive.identity import claim
    from capture.archive.recording import Configuration, Recording, StreamRecord
    from capture.formats import writer
    from capture.ingest.block import SealedBlock
    from capture.ingest.commit import Committer
    from capture.ingest.record import Records
    from capture.maintenance.leading import Leading
    from capture.maintenance.sweep import sweep
    from capture.stores import open_store
    from capture.testing import HeadState, MemoryHead

    store, manifest, table = open_store(str(folder)), HeadState(), HeadState()
    await claim(store, STREAM, STREAM, CREATED)
    committer = Committer(store, writer(options.pop("format", "parquet"), **options), Settled())
    at_once, last, size = asyncio.Semaphore(AT_ONCE), 0, 0
    async with asyncio.TaskGroup() as tasks:
        for key, numbers in enumerate(blocks):
            payloads = list(map(payload, numbers))
            size += sum(map(len, payloads))
            last = max(last, numbers[-1])
            count = len(numbers)
            records = Records(
                STREAM,
                list(numbers),
                [NOW * 10**9 + 1000 * one for one in numbers],
                [b"piled.s%d" % (one % 10) for one in numbers],
                [b""] * count,
                payloads,
                [1] * count,
                [b""] * count,
                [None] * count,
            )
            await at_once.acquire()
            task = tasks.create_task(committer.commit(SealedBlock(STREAM, f"k{key}", NOW, records, "messages")))
            task.add_done_callback(lambda _: at_once.release())
    await sweep(Leading(store, MemoryHead(1, manifest), table.read, grace=900.0), now=float(NOW))
    state = {"messages": last, "bytes": size + 40 * last, "first_seq": 1, "last_seq": last}
    seen = Configuration(since=float(NOW), first_seq=1, last_seq=last, config=CONFIG)
    record = StreamRecord(created=CREATED, state=state, configurations=[seen])
    recording = Recording(archive=STREAM, streams={STREAM: record}, created=float(NOW))
    await chain.commit(store, MemoryHead(1), None, recording)
    return str(folder), manifest


def measured(server, warm, store):
    """Restore in a separate process; return the numbers that this program prints."""
    command = [sys.executable, __file__, repr(server.connect_options()), str(warm), str(store)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return int(told[0]), float(told[1]), float(told[2]), int(told[3]), int(told[4])


class _Hidden:
    """Hides pandas, as if only the extra `capture` were installed: pyarrow loads pandas if it exists."""

    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def _bytes(name):
    with open("/proc/self/status") as file:  # noqa: PTH123
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))


async def _restore(options, warm, store):
    import gc
    import time

    import capture
    from natty import Natty

    async with Natty(**options) as natty:
        await capture.restore(natty, warm, name="PILED_WARM", detached=True)
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
            file.write("5")  # resets VmHWM
        before, began, cpu = _bytes("VmRSS:"), time.perf_counter(), time.process_time()
        done = await capture.restore(natty, store)
        most = _bytes("VmHWM:")
        print(done.kept, time.perf_counter() - began, time.process_time() - cpu, most, most - before)
        await natty.delete_stream("PILED_WARM")


if __name__ == "__main__":
    from pathlib import Path

    sys.meta_path.insert(0, _Hidden())
    sys.path.insert(0, str(Path(__file__).parents[2]))
    asyncio.run(_restore(eval(sys.argv[1]), *sys.argv[2:]))
