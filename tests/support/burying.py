"""Helpers for tests of dead letters: a private stream, consumer and stream of letters."""

import asyncio
from contextlib import asynccontextmanager, suppress

from patient import NEVER, PATIENCE

from natty import DeadLetterOptions, DeadLetters, StreamNotFoundError
from natty.consuming.dead_letters.advisory import durable_of


class Scene:
    """A stream with a consumer `c`, and a private stream of letters."""

    def __init__(self, natty, name, **options):
        self.natty, self.name = natty, name
        self.dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{name}", **options))
        self.box = natty.dead_letters(f"L_{name}")

    async def make(self, retention="limits", **consumer):
        """Create the streams and the consumer."""
        await self.dead.ensure()
        await self.natty.ensure_stream(self.name, subjects=[f"{self.name}.>"], retention=retention)
        settings = {"ack_wait": NEVER, "max_deliver": 2} | consumer
        await self.natty.ensure_consumer(self.name, "c", **settings)
        return self

    async def publish(self, *payloads, headers=None):
        """Publish messages in order, each with a message id."""
        for payload in payloads:
            await self.natty.publish(f"{self.name}.eu", payload, headers=headers, msg_id=f"id-{payload[:8].hex()}")

    async def take(self, count=1):
        """Return this many messages, unsettled."""
        taken, pull = [], self.natty.pull(self.name, "c", max_messages=count)
        async with asyncio.timeout(PATIENCE):
            async for batch in pull:
                taken += batch
                if len(taken) >= count:
                    pull.stop()
        return taken

    @asynccontextmanager
    async def handler(self, settle=lambda message: None, consumer="c"):
        """Within the block, pull and call `settle` with each message; by default do nothing, like a hanging handler."""
        pull = self.natty.pull(self.name, consumer)

        async def run():
            async for batch in pull:
                for message in batch:
                    settle(message)
                pull.finish(len(batch))

        task = asyncio.create_task(run())
        yield
        pull.stop()
        await task

    async def letters(self, count=None):
        """Wait until there are `count` letters, and return them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = [letter async for letter in self.box.ls()]
                if count is None or len(found) >= count:
                    return found
                await asyncio.sleep(0.02)

    async def letter_about(self, data):
        """Wait for the letter with this payload, and return it; after a pause, other messages may have letters, too."""
        async with asyncio.timeout(PATIENCE):
            while True:
                async for letter in self.box.ls():
                    if letter.data == data:
                        return letter
                await asyncio.sleep(0.02)

    async def all_looked_at(self):
        """Wait until every advisory about the consumer is processed."""
        subject = f"CONSUMER.INFO.{self.dead.options.advisories}.{durable_of(self.name, 'c')}"
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await self.natty.jetstream.request(subject)
                if state["num_pending"] == state["num_ack_pending"] == 0 and state["delivered"]["consumer_seq"]:
                    return
                await asyncio.sleep(0.02)

    async def advisories(self, count):
        """Wait until this many advisories about the stream are stored and not processed."""
        wanted = {"subjects_filter": f"$JS.EVENT.ADVISORY.CONSUMER.*.{self.name}.*"}
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(StreamNotFoundError):
                    answer = await self.natty.jetstream.request(f"STREAM.INFO.{self.dead.options.advisories}", wanted)
                    if sum((answer["state"].get("subjects") or {}).values()) >= count:
                        return
                await asyncio.sleep(0.02)


def broken():
    try:
        raise LookupError("no such customer")
    except LookupError as error:
        return error
