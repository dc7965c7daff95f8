"""A pipeline's table whose new messages come from Spark's streaming query, without a leader."""

from derivations import Table

from capture.archive.sequences import Sequences
from capture.pipelines.derivation import Following, Held, Input
from capture.spark.connection_options import write_options

NAME = "followed"


class Followed(Table):
    """A table that follows a stream: each `step` is a micro-batch."""

    def __init__(self, driver, store, stream, sql="", **settings):
        super().__init__(driver, store, sql.replace("FROM S", f"FROM `{stream}`"), name=NAME, **settings)
        self.stream, self.progress, self.after = stream, Sequences(), -1
        self.batches = []

    async def follow(self, nats_server):
        options, variables = write_options(nats_server.connect_options())
        assert variables == {}
        options |= {"stream": self.stream, "failOnDataLoss": "false", "maxMessagesPerTrigger": "40"}
        await self.driver.follow(Following(pipeline=NAME, options=options, every=0.05))

    async def step(self):
        batch = await self.driver.next_batch(NAME, self.after)
        self.after = batch.number
        sequences = Sequences.from_text(batch.sequences)
        assert len(sequences) == batch.count
        self.batches.append(sequences)
        if new := sequences - self.progress:
            given = "" if new == sequences else new.to_text()
            held = Held(number=batch.number, count=len(new), bytes=batch.bytes, given=given)
            await self.run_input(Input(store=self.blocks, held=held, **self.input_settings()))
        self.progress |= new
        return new

    async def until(self, last):
        while not self.progress or self.progress.last < last:
            await self.step()

    async def run_block(self, block):
        """A run over an object of the archive."""
        given = self.asked([block]).inputs["S"]
        done = await self.run_input(Input(store=given.store, new=given.new, **self.input_settings()))
        self.progress |= Sequences.from_bytes(block.sequences)
        return done

    def input_settings(self):
        return {"payload_schema": self.schema, "is_plain": True}

    async def run_input(self, given):
        return await self.run([], inputs={self.stream: given})
