"""A pipeline that follows a stream in memory, over the archive of a `World`, without NATS and Spark."""

import asyncio
from collections import Counter

import msgspec
from archived import ARCHIVE, CREATED, STREAM
from pipeline_world import ArrowDeriver

from capture.archive.identity import claim
from capture.archive.sequences import Sequences
from capture.errors import SparkError
from capture.node.pipeline_follower import PipelineFollower
from capture.node.pipeline_runner import PipelineRunner, Troubles
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.derivation import Batch
from capture.reading.live import check_same
from capture.reading.stream_range import StreamFacts
from capture.testing import MemoryHead


class MemoryStream:
    """The stream of a world: the sequences that it holds, and when it was created."""

    def __init__(self):
        self.held, self.last, self.created = Sequences(), 0, CREATED

    def publish(self, count=1):
        self.held |= Sequences.from_range(self.last + 1, self.last + count)
        self.last += count

    def purge(self, before):
        self.held -= Sequences.from_range(1, before)

    @property
    def facts(self):
        first = self.held.first if self.held else self.last + 1
        return StreamFacts(STREAM, self.created, first, self.last, direct=True)


class BatchDeriver(ArrowDeriver):
    """Also reads the stream, in batches of at most `most` sequences. `begun` counts its queries."""

    def __init__(self, store, world, stream, most=5):
        super().__init__(store, world)
        self.stream, self.batch_size = stream, most
        self.begun, self.failure = [], None
        self.following = self.held = None

    async def follow(self, asked):
        self.following, self.position, self.held = asked, int(asked.options["startSequence"]), None
        self.begun.append(self.position)

    async def next_batch(self, pipeline, after):
        if self.following is None:
            raise SparkError("there is no query")
        if self.held is None or self.held.number == after:
            self.held = None
            while not (found := self.stream.held.within(self.position, self.position + self.batch_size - 1)):
                if self.failure:
                    failure, self.failure, self.following = self.failure, None, None
                    raise failure
                if self.position + self.batch_size <= self.stream.last:
                    self.position += self.batch_size
                else:
                    await asyncio.sleep(0)
            self.position = found.last + 1
            text = found.to_text()
            self.held = Batch(number=after + 1, count=len(found), bytes=9 * len(found), sequences=text)
        return self.held

    async def unfollow(self, pipeline):
        self.following = None

    async def derive(self, asked):
        [(name, given)] = asked.inputs.items()
        if given.held:
            assert self.following is not None
            whole = Sequences.from_text(self.held.sequences)
            taken = Sequences.from_text(given.held.given) if given.held.given else whole
            assert given.held.number == self.held.number
            assert given.held.count == len(taken)
            assert not taken - whole
            held = msgspec.structs.replace(given.held, given=taken.to_text())
            asked = msgspec.structs.replace(asked, inputs={name: msgspec.structs.replace(given, held=held)})
        return await super().derive(asked)


class Follower(PipelineFollower):
    """Its stream is in memory. `asks` are the requests of operators."""

    async def _look(self, stream, least=0):
        facts = self.deriver.stream.facts
        check_same(stream, self._created, {"created": facts.created})
        return facts


class Following:
    """A leader's term of one pipeline that follows the stream, with a clock that tests set."""

    def __init__(self, world, stream, store=None, **options):
        world.token += 1
        self.world, self.stream, self.now = world, stream, 0.0
        store = store or world.home
        self.leading = PipelineLeading(store, MemoryHead(world.token, world.head), f"node-{world.token}", **options)
        self.deriver = BatchDeriver(store, world, stream)
        self.failing, self.counts = {}, {}
        runner = PipelineRunner(self.leading, self.deriver, f"node-{world.token}", lambda: world.now, self.counts)
        [one] = world.config.pipeline
        self.follower = Follower(
            lambda: world.config,
            None,
            runner,
            self.deriver,
            Troubles(self.failing),
            one.name,
            elapsed=lambda: self.now,
        )

    async def step(self):
        """One step of the follower, if it does not rest; return what fails."""
        self.world.now += 1.0
        self.now += 1.0
        [one] = self.world.config.pipeline
        self.follower._woken.set()  # it does not wait for long
        if not await self.follower._time_to_rest(one):
            await self.follower.step(one)
        return dict(self.failing)

    async def until_all(self):
        """Step until the table has all that the stream holds, and the archive."""
        for _ in range(200):
            progress = await self.read_progress()
            if not (self.stream.held | Sequences.from_iterable(self.world.stored)) - progress:
                return
            await self.step()
            await asyncio.sleep(0)
        raise AssertionError(f"the table has only {progress}")

    async def read_progress(self):
        [one] = self.world.config.pipeline
        return await self.leading.read_progress(one.name, STREAM)

    async def read_table(self):
        [one] = self.world.config.pipeline
        return (await self.leading.read(self.world.now)).tables[one.name]

    async def end(self):
        await self.follower._end_query()


async def begin(world):
    """Claim the archive, as the first node does; return the stream."""
    await claim(world.archive.store, ARCHIVE, STREAM, CREATED, None)
    return MemoryStream()


__all__ = ["Counter"]
