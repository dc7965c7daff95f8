"""A reader of watches for the tests of key-value."""

import asyncio
from contextlib import asynccontextmanager

from patient import PATIENCE

from natty.kv import Entry, Gone, PictureComplete


class Seen:
    """The events of a watch, read by a separate task."""

    def __init__(self, watch):
        self.watch = watch
        self.events = []
        self.keys = {}
        self.pictures = []
        self._moved = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self):
        async for event in self.watch:
            self.events.append(event)
            match event:
                case Entry(key, value):
                    self.keys[key] = value
                case Gone(key):
                    self.keys.pop(key, None)
                case PictureComplete():
                    self.pictures.append(dict(self.keys))
            self._moved.set()

    async def until(self, condition):
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition(self):
                    self._moved.clear()
                    moved = asyncio.create_task(self._moved.wait())
                    await asyncio.wait({moved, self.task}, return_when=asyncio.FIRST_COMPLETED)
                    moved.cancel()
                    if self.task.done():
                        self.task.result()
                        assert condition(self), self
        except TimeoutError:
            raise AssertionError(f"not within {PATIENCE} s: {self}") from None
        return self

    async def complete(self, pictures=1):
        return await self.until(lambda seen: len(seen.pictures) >= pictures)

    def __repr__(self):
        return f"{self.watch!r} has shown {len(self.events)} events, last {self.events[-3:]}"

    @property
    def revisions(self):
        """The revisions of the events, in their order, without events that have none."""
        return [event.revision for event in self.events if getattr(event, "revision", 0)]


def kinds(events):
    """Return the parts of events that are compared."""
    return [(type(event).__name__, getattr(event, "key", None), getattr(event, "reason", None)) for event in events]


@asynccontextmanager
async def watching():
    """Return a function that reads a watch in the background, until the end of the block."""
    started = []

    def start(watch):
        started.append(Seen(watch))
        return started[-1]

    try:
        yield start
    finally:
        for seen in started:
            seen.task.cancel()
        await asyncio.gather(*(seen.task for seen in started), return_exceptions=True)
