"""An archive in which every access to store and heads is a step, and a schedule decides which actor takes the next one.

An actor that gets no more steps was killed; one that gets a step after its successor was elected is a deposed leader
that was paused and still believes in its term. Time passes only between the steps, by a whole grace time at once.
"""

import asyncio
import contextlib
import json
import math
from collections import Counter, defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field

from set_engine import SetEngine, described, read_back

from capture.archive import chain
from capture.archive.index.tree import Index
from capture.archive.manifest import Manifest, Partition, block_path, encode, entry_path
from capture.archive.picture import read_picture
from capture.archive.retention import EVERYTHING, Retention
from capture.archive.table import Table
from capture.errors import AlreadyStoredError, CaptureError, FencedError, ManifestError, NotStoredError
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import FEW, Leading
from capture.maintenance.sweep import read_entries, sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead

GRACE = 1000.0
INTERVAL = 1000  # seconds of message time
POLICY = Policy(min_files=1, target_bytes=60)
TURNS = 50  # of the event loop, at most, from one step of an actor to its next one
_actor = ContextVar("who takes this step")


@dataclass(eq=False)
class Actor:
    name: str
    token: int = 0
    waiting: list = field(default_factory=list)  # futures, one for each step that it is about to take
    task: asyncio.Task | None = None


class Steps(MemoryStore):
    """A store whose every call waits for a step."""

    def __init__(self, world):
        super().__init__("world", clock=lambda: world.now)
        self._world = world

    async def put(self, path, data, *, if_absent=True):
        await self._world.step()
        await super().put(path, data, if_absent=if_absent)

    async def get(self, path):
        await self._world.step()
        return await super().get(path)

    async def get_range(self, path, start, length):
        await self._world.step()
        return await super().get_range(path, start, length)

    async def list(self, prefix=""):
        await self._world.step()
        return await super().list(prefix)

    async def delete(self, path):
        await self._world.step()
        await super().delete(path)


class Lagging(HeadState):
    """A head whose readers may get the commit before the last one."""

    def __init__(self, world):
        super().__init__()
        self._world = world
        self._before = None

    def __setattr__(self, name, value):
        if name == "head" and hasattr(self, "head"):
            self._before = self.head
        super().__setattr__(name, value)

    async def read(self):
        await self._world.step()
        return self._before if self._world.chance(3) else self.head

    def caught_up(self):
        """From now on, readers get no commit older than the current one."""
        self._before = self.head

    async def read_now(self):
        await self._world.step()
        return self.head


class Believing(MemoryHead):
    """A term whose holder never notices its end without the store, and whose commits may lose their answer."""

    def __init__(self, world, token, state):
        super().__init__(token, state)
        self._world = world

    def check(self):
        pass

    async def read(self):
        await self._world.step()
        super().check()
        return self.state.head

    async def commit(self, head):
        await self._world.step()
        super().check()
        self.state.head = head
        if self._world.chance(20):
            raise FencedError("stored, and nobody heard of it")


class World:
    """One archive, and all actors that work on it. `random` is the schedule.

    With `named_by_content` a block that is stored again keeps its name, as in earlier versions.
    """

    def __init__(self, random, rules=(), *, named_by_content=False):
        self.now = 1e6
        self.random = random
        self.retention = Retention(rules, INTERVAL)
        self.named_by_content = named_by_content
        self.store = Steps(self)
        self.manifest, self.table = Lagging(self), Lagging(self)
        self.actors = []
        self._dead = []
        self.tokens = 0
        self.acked = set()
        self.copies = defaultdict(set)  # sequence -> the paths of the blocks that hold it
        self.intervals = {}  # sequence -> the interval that its message was stored in
        self.blocks = []
        self.next_sequence = 1
        self.pictures = 0
        self.trace = []

    # Steps.

    def chance(self, one_in):
        return self.random.randrange(one_in) == 0

    async def step(self):
        actor = _actor.get(None)
        if actor is None:  # the end of the test: there are no other actors
            return
        waiting = asyncio.get_running_loop().create_future()
        actor.waiting.append(waiting)
        await waiting

    def start(self, name, work, token=0):
        actor = Actor(name, token)
        token_of_context = _actor.set(actor)
        actor.task = asyncio.create_task(work)
        _actor.reset(token_of_context)
        self.actors.append(actor)
        return actor

    async def give_a_step(self, actor):
        """Let the actor take one step, and continue to its next one."""
        if actor.waiting:
            self.trace.append(actor.name)
            actor.waiting.pop(self.random.randrange(len(actor.waiting))).set_result(None)
        for _ in range(TURNS):
            await asyncio.sleep(0)
            if actor.waiting or actor.task.done():
                break
        if actor.task.done():
            self.actors.remove(actor)
            actor.task.result()

    def kill(self, actors):
        for actor in actors:
            self.actors.remove(actor)
            self._dead.append(actor)

    async def close(self):
        """Remove the actors that the schedule left."""
        left = [actor.task for actor in [*self.actors, *self._dead]]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def of(self, kind):
        return [actor for actor in self.actors if actor.name.startswith(kind)]

    # Who works on it.

    def elect(self, kind):
        """Begin a term without notice to the last leader."""
        self.tokens += 1
        work = self._sweeps if kind == "sweeper" else self._compacts
        return self.start(f"{kind} {self.tokens}", work(self.tokens), self.tokens)

    async def _sweeps(self, token):
        term = Believing(self, token, self.manifest)
        await self._rounds(term, lambda: self._sweep(term))

    async def _sweep(self, term):
        leading = Leading(self.store, term, self.table.read, grace=GRACE, elapsed=lambda: self.now, listed=math.inf)
        leading.objects = FEW + 1 if self.chance(3) else 0  # the former: not a full sweep
        await sweep(leading, now=self.now, retention=self.retention)

    async def _compacts(self, token):
        term = Believing(self, token, self.table)
        await self._rounds(term, lambda: self._compact(term))

    async def _compact(self, term):
        leading = TableLeading(self.store, term, self.manifest.read, grace=GRACE, elapsed=lambda: self.now)
        told = {"now": self.now, "retention": self.retention, "check": read_back}
        await compact(leading, SetEngine(self.store), POLICY, **told)

    async def _rounds(self, term, work):
        while True:
            await self.step()
            try:
                await work()
            except FencedError:
                return
            except NotStoredError as error:
                if term.token == term.state.highest_token:  # a paused actor has no guarantees
                    raise AssertionError(f"an object that was needed is gone: {error}") from error
            except CaptureError as error:
                if "_index/" in str(error) and term.token == term.state.highest_token:
                    raise AssertionError(f"a page that was needed is gone: {error}") from error

    def write(self, sequences):
        """Store a block of messages of one interval."""
        first, last, interval = min(sequences), max(sequences), self.intervals[sequences[0]]
        name = f"{self.random.getrandbits(32):08x}"
        path = block_path(Partition("S", "k", interval, INTERVAL), first, last, len(sequences), name, ".parquet")
        self.blocks.append((path, sequences))
        self.start("writer", self._writes(path, sequences, interval))

    async def _writes(self, path, sequences, interval):
        """Store a block as `capture.commit` does, and ack it, unless half of the grace time has passed meanwhile."""
        for sequence in sequences:
            self.copies[sequence].add(path)
        since = self.now
        try:
            await self.store.put(path, json.dumps(sequences).encode())
        except AlreadyStoredError:
            since = min([since, *(one.modified for one in await self.store.list(path))])
        if self.now - since > GRACE / 2:
            return
        with contextlib.suppress(AlreadyStoredError):
            await self.store.put(entry_path(path), encode(described(path, sequences, self.now, interval)))
        if self.now - since <= GRACE / 2 and await MemoryStore.list(self.store, path):
            self.acked.update(sequences)

    async def _reads(self):
        acked = set(self.acked)
        entries, unreadable = await read_entries(self.store)
        assert unreadable == []
        try:
            picture = await read_picture(self.store, self.manifest.read_now, self.table.read)
        except ManifestError as error:  # it read an outdated state twice
            if "_index/" in str(error):
                raise AssertionError(f"a page that was needed is gone: {error}") from error
            return
        files = [json.loads(await self.store.get(one.path)) for one in picture.files]
        blocks = [json.loads(await self.store.get(one.path)) for one in picture.blocks]
        for one in picture.list_unadopted(entries):
            with contextlib.suppress(NotStoredError):  # its writer gave up, and never acked it
                blocks.append(json.loads(await self.store.get(one.path)))
        self._check(acked, files, blocks, self.removed(picture))

    def removed(self, picture):
        """Return the messages recorded as removed by retention; assert that it may have removed them by now."""
        gone = set(picture.removed.get("S", ()))
        for rule in self.retention.rules:
            if rule.keep_bytes is None:
                early = {row for row in gone if self.intervals[row] + INTERVAL + rule.older_than >= self.now}
                assert not early, f"removed too early: {sorted(early)}"
        return gone

    def _check(self, acked, files, blocks, removed):
        table = Counter(row for rows in files for row in rows)
        assert not [row for row, count in table.items() if count > 1], "the table holds a message twice"
        seen = table + Counter(row for rows in blocks for row in set(rows))
        assert acked <= set(seen) | removed, f"lost: {sorted(acked - set(seen) - removed)}"
        twice = {row for row, count in seen.items() if count > len(self.copies[row])}
        assert not twice, f"seen more often than stored: {sorted(twice)}"
        self.pictures += 1

    # What happens.

    async def run(self, steps):
        for kind in ("sweeper", "compactor"):
            self.elect(kind)
        favoured = None  # an actor that continues for a while as others are paused
        for _ in range(steps):
            if not self.actors or self.chance(8):
                self._something()
            else:
                if favoured not in self.actors or self.chance(12):
                    favoured = self.random.choice(self.actors)
                await self.give_a_step(favoured)

    def _something(self):
        what = self.random.randrange(20)
        if what < 8 and len(self.of("writer")) < 3:
            self._write_something()
        elif what < 11 and len(self.of("reader")) < 2:
            self.start("reader", self._reads())
        elif what < 13:
            self._elect_some("sweeper")
        elif what < 15:
            self._elect_some("compactor")
        elif what < 16 and self.actors:
            self.kill([self.random.choice(self.actors)])
        elif not self.of("reader"):  # a reader that reads for longer than the grace time has no guarantees
            self._pass_time()

    def _pass_time(self):
        """Let a grace time pass: far more than a lease, so that a leader that was paused meanwhile no longer leads."""
        self.now += GRACE * 1.1
        self.tokens += 1
        for head in (self.manifest, self.table):
            head.highest_token = self.tokens
            head.caught_up()
        self.trace.append("time passes")

    def _elect_some(self, kind):
        if len(self.of(kind)) < 2:
            self.elect(kind)

    def _write_something(self):
        if self.blocks and self.chance(4):
            self._write_again()
            return
        fresh = list(range(self.next_sequence, self.next_sequence + self.random.randint(1, 3)))
        self.next_sequence += len(fresh)
        interval = int(self.now // INTERVAL) * INTERVAL
        self.intervals |= dict.fromkeys(fresh, interval)
        if self.blocks and self.chance(3):  # and some that were delivered again
            fresh += [one for one in self.random.choice(self.blocks)[1] if self.intervals[one] == interval]
        self.write(sorted(set(fresh)))

    def _write_again(self):
        """Write the same block again, as after its consumer was created again, or its writer was killed."""
        path, sequences = self.random.choice(self.blocks)
        if self.named_by_content:
            self.start("writer", self._writes(path, sequences, self.intervals[sequences[0]]))
        else:
            self.write(sequences)

    async def settle(self):
        """Kill all actors and let new leaders do the remaining work without faults. Return the rows of the table.

        After some rounds they have no retention rules any more, and delete the objects that are retired by then.
        """
        self.kill(list(self.actors))
        self.chance = lambda one_in: False
        await self._rounds_of_new_leaders(5)
        retention, self.retention = self.retention, EVERYTHING
        picture = await read_picture(self.store, self.manifest.read, self.table.read)
        assert retention.find_expired(picture.files, self.now - GRACE * 1.1) == []
        await self._rounds_of_new_leaders(2)
        self.retention = retention
        picture = await read_picture(self.store, self.manifest.read, self.table.read)
        assert picture.blocks == []
        rows = Counter()
        for one in picture.files:
            rows.update(json.loads(await self.store.get(one.path)))
        assert set(rows.values()) <= {1}
        return picture, set(rows)

    async def pages(self):
        """Return the stored pages; assert that documents need them, or that they are about to be deleted."""
        stored = {one.path for one in await self.store.list("_index/")}
        needed = set()
        for head, kind in ((self.manifest, Manifest), (self.table, Table)):
            document, index = await chain.read(self.store, await head.read(), kind), Index(self.store, kind.PAGES)
            reached = {name for one in document.list_versions() for name in await index.reach(one)}
            assert {index.path(name) for name in reached} <= stored
            needed |= {index.path(name) for name in reached}
            needed |= {index.path(name) for one in document.outdated for name in one.pages}
        assert stored <= needed, f"left over: {sorted(stored - needed)}"
        return stored

    async def _rounds_of_new_leaders(self, count):
        for _ in range(count):
            self.tokens += 1
            sweeper = Believing(self, self.tokens, self.manifest)
            compactor = Believing(self, self.tokens, self.table)
            for _ in range(2):
                await self._sweep(sweeper)
                await self._compact(compactor)
            self.now += GRACE * 1.1
