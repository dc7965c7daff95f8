"""Every step of commits and sweeps, on disk and network: the process is killed there, the power is cut, the step fails.

What was acknowledged is stored, none is invented, no part of an object is visible, and whoever goes on gets all of it.
"""

import contextlib
import time
from hashlib import sha256

import pytest
from disk_steps import FAILS, FAILS_AFTER, KILLED, Disk, Killed, Steps
from sealed import block as sealed_block

from capture.archive.picture import read_picture
from capture.errors import StoreError
from capture.formats import writer
from capture.formats.choose import read_object
from capture.ingest.commit import CommitOptions, Committer
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import read_entries, sweep
from capture.stores import FileStore
from capture.testing import HeadState, MemoryHead
from capture.verification.objects import read_archive

PAYLOADS = [b"payload %d" % number * 20 for number in range(4)]
MOST_STEPS = 300
GRACE = 900.0
THE_STEPS = {"ack", "commit the head", "write half of .tmp", "sync .tmp", "link blocks", "link _entries", "sync blocks"}


class Server:
    """What outlives a process: which messages are acknowledged, and the manifest's head."""

    def __init__(self):
        self.acked = set()
        self.manifest, self.table = HeadState(), HeadState()
        self.token = 0

    def deliver(self):
        """Return a block of each half of what is not acknowledged."""
        left = [number for number in range(len(PAYLOADS)) if b"%d" % number not in self.acked]
        for numbers in (left[:2], left[2:]):
            if numbers:
                one = sealed_block(*((b"flights.EWR", b"", PAYLOADS[number]) for number in numbers))
                one.records.sequences[:] = [number + 1 for number in numbers]
                one.records.replies[:] = [b"%d" % number for number in numbers]
                yield one


class Acks:
    """The way of acks to the server: one that arrives is there, whether or not the process learns of it."""

    def __init__(self, server, steps):
        self._server, self._steps = server, steps

    def ack(self, messages):
        self._steps("ack", self._server.acked.update, messages.replies)

    def nak(self, messages, delay=0.0):
        pass


class Head(MemoryHead):
    """A head whose commit is a step."""

    def __init__(self, server, steps):
        super().__init__(server.token, server.manifest)
        self._steps = steps

    async def commit(self, head):
        self.check()
        try:
            self._steps("commit the head", setattr, self.state, "head", head)
        except OSError as error:
            raise StoreError("the server can't be reached") from error


async def no_pause(seconds):
    pass


@pytest.fixture(autouse=True)
def no_threads(monkeypatch):
    """The disk is played: nothing blocks, and ten thousand changes of threads take their time."""

    async def at_once(work, *arguments):
        return work(*arguments)

    monkeypatch.setattr("capture.stores.file.to_thread", at_once)


async def live(root, server, steps):
    """One process: it stores and acknowledges what is delivered, and sweeps after each block."""
    server.token += 1
    store, head = FileStore(root), Head(server, steps)
    options = CommitOptions(attempts=5, backoff=0.0)
    committer = Committer(store, writer("ndjson"), Acks(server, steps), options, sleep=no_pause)
    for one in server.deliver():
        with contextlib.suppress(OSError):  # an ack that could not be sent; in a node the source catches it
            await committer.commit(one)
        with contextlib.suppress(StoreError):  # the next one does what this one could not
            await sweep(Leading(store, head, server.table.read), now=0.0)


async def seen(root, server):
    """What a reader sees: {sequence: payloads}; everything visible is whole."""
    store = FileStore(root)
    entries, unreadable = await read_entries(store)
    picture = await read_picture(store, server.manifest.read, server.table.read)
    held = await read_archive(store, picture, deep=True, pending_entries=entries)
    assert (unreadable, [problem for one in held.values() for problem in one.problems]) == ([], [])
    found = {}
    for stored in (*picture.blocks, *picture.list_unadopted(entries)):
        rows = read_object(await store.get(stored.path), stored)
        for sequence, payload in zip(rows["sequence"].to_pylist(), rows["payload"].to_pylist(), strict=True):
            found.setdefault(sequence, set()).add(payload)
    for one in await store.list("blocks/"):
        assert f"-{sha256(await store.get(one.path)).hexdigest()[:8]}" in one.path, f"a part is visible: {one.path}"
    return found


def complete(numbers):
    return {number + 1: {PAYLOADS[number]} for number in numbers}


async def played(folder, at, way, *, power):
    """Return the steps of a life in which something happens, having looked at the archive, and gone on in a second."""
    server, steps = Server(), Steps(at, way)
    root, graveyard = folder / "archive", folder / "graveyard"
    graveyard.mkdir(parents=True)
    with Disk(root, steps, graveyard) as disk, contextlib.suppress(Killed):
        await live(root, server, steps)
    if power:
        disk.cut_power()
    acked = {int(reply) for reply in server.acked}
    then = await seen(root, server)
    assert complete(acked).items() <= then.items(), "what was acknowledged is not stored"
    assert then.items() <= complete(range(len(PAYLOADS))).items(), "something is invented"
    with Disk(root, Steps(), graveyard):
        await live(root, server, Steps())
    assert len(server.acked) == len(PAYLOADS)
    assert await seen(root, server) == complete(range(len(PAYLOADS)))
    return steps.done


@pytest.mark.parametrize(
    ("way", "power"),
    [
        pytest.param(KILLED, False, id="killed"),
        pytest.param(KILLED, True, id="the power is cut"),
        pytest.param(FAILS, False, id="fails", marks=pytest.mark.long),
        pytest.param(FAILS_AFTER, False, id="fails afterwards", marks=pytest.mark.long),
    ],
)
async def test_nothing_acknowledged_is_lost_at_whatever_step_it_happens(tmp_path, way, power):
    for at in range(1, MOST_STEPS):
        steps = await played(tmp_path / str(at), at, way, power=power)
        if len(steps) < at:
            assert {*steps} >= THE_STEPS
            return
    raise AssertionError("a life has fewer steps than that")


class Standing(FileStore):
    """A store whose writer stands still before an entry, for so long that the sweep removes the block meanwhile."""

    def __init__(self, root, server):
        super().__init__(root)
        self.server, self.now = server, time.time()

    async def put(self, path, data, *, if_absent=True):
        if path.startswith("_entries/"):
            self.now += 3 * GRACE
            await self.sweep()
        await super().put(path, data, if_absent=if_absent)

    async def sweep(self):
        self.server.token += 1
        head = MemoryHead(self.server.token, self.server.manifest)
        leading = Leading(FileStore(self.root), head, self.server.table.read, grace=GRACE)
        return await sweep(leading, now=self.now)


async def test_a_writer_that_stood_still_leaves_no_entry_of_a_block_that_was_removed_meanwhile(tmp_path):
    server = Server()
    store = Standing(tmp_path / "archive", server)
    acks = Acks(server, Steps())
    committer = Committer(
        store, writer("ndjson"), acks, CommitOptions(give_up=GRACE / 2), clock=lambda: store.now, sleep=no_pause
    )
    one, _ = server.deliver()
    with pytest.raises(StoreError, match="without a durable entry"):
        await committer.commit(one)
    assert server.acked == set()
    assert (await store.sweep()).dangling == []
    assert await seen(store.root, server) == {}
