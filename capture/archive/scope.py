"""What an archive was asked to hold: where each of its durable consumers began, and which subjects it was to get.

What lies before that, or is of another subject, is not missing. Every life of a durable has a record of its own, made
before the first of its messages is stored; together they say what was asked for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from itertools import islice

import msgspec

from capture.archive.manifest import quote_key
from capture.archive.sequences import Sequences
from capture.errors import AlreadyStored, ManifestError
from capture.stores import Store
from natty import Batch, Natty
from natty.errors import UNREADABLE
from natty.names import covers
from natty.pulling.ordered import CaughtUp, Ordered, OrderedOptions

ASKED = "_asked/"
READ_AHEAD = 8192  # messages, of which only subjects come
AT_ONCE = 64  # messages that are looked at together where a stream lets nobody read along
_TIME = re.compile(r"[^0-9A-Za-z]")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a durable consumer was made to deliver: every message from sequence `start` on, of these subjects or of all.

    `created` is when the server made the durable, as it writes that: one that is made again is another one.
    """

    stream: str
    durable: str
    created: str
    start: int = 1
    filter_subjects: list[str] = []
    format: int = 1

    @property
    def path(self) -> str:
        """Where it is recorded."""
        return f"{_folder(self.stream)}{quote_key(self.durable)}-{_TIME.sub('', self.created)}.json"

    def takes(self, subject: str) -> bool:
        """Tell whether messages of this subject were asked for."""
        return not self.filter_subjects or covers(self.filter_subjects, subject)


def _folder(stream: str) -> str:
    return f"{ASKED}{quote_key(stream)}/"


async def read_record(store: Store, path: str) -> Asked:
    """Return a record. NotStored; ManifestError if it is damaged."""
    try:
        return msgspec.json.decode(await store.get(path), type=Asked)
    except UNREADABLE as error:
        raise ManifestError(f"{path} in {store.url} is damaged: {error}") from error


async def write_record(store: Store, asked: Asked) -> None:
    """Write it down, unless somebody has: what was asked of a durable never changes."""
    try:
        await store.put(asked.path, msgspec.json.encode(asked))
    except AlreadyStored:
        return


async def read_records(store: Store, stream: str) -> list[Asked]:
    """Return what the archive was asked for of a stream; nothing is written of it by versions that had no start."""
    return [await read_record(store, one.path) for one in await store.list(_folder(stream))]


async def never_asked(natty: Natty, store: Store, stream: str, missing: Sequences) -> Sequences:
    """Return which of the missing sequences the archive was never asked for.

    These lie before the start of every durable, or their messages, which are looked at in the stream, have subjects
    that no durable was to get. What is not in the stream any more can't be looked at: it stays missing.
    """
    records = await read_records(store, stream)
    if not records or not missing:
        return Sequences()
    begin = min(one.start for one in records)
    before = missing.within(1, begin - 1)
    whole = min((one.start for one in records if not one.filter_subjects), default=missing.last + 1)
    doubtful = missing.within(begin, whole - 1)
    if not doubtful:
        return before
    unasked = [before]
    async with aclosing(_subjects(natty, stream, doubtful)) as subjects:
        async for some in subjects:
            unasked.append(
                Sequences.from_iterable(
                    sequence
                    for sequence, subject in some
                    if not any(one.start <= sequence and one.takes(subject) for one in records)
                )
            )
    return Sequences.union_of(unasked)


async def _subjects(natty: Natty, stream: str, wanted: Sequences) -> AsyncGenerator[list[tuple[int, str]], None]:
    """Yield the subjects of those of the wanted messages that are in the stream, some at a time."""
    info = await natty.jetstream.request(f"STREAM.INFO.{stream}")
    if info["config"]["retention"] == "workqueue":
        async for some in _one_by_one(natty, stream, iter(wanted)):
            yield some
        return
    reader = Ordered(natty.jetstream, stream, OrderedOptions(headers_only=True, max_messages=READ_AHEAD))
    async with aclosing(reader.__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, CaughtUp):
                break
            if isinstance(step, Batch):
                subjects = (subject.decode("utf-8", "replace") for subject in step.subjects)
                yield [pair for pair in zip(step.sequences, subjects, strict=True) if pair[0] in wanted]
                if step.sequences[-1] >= wanted.last:
                    break


async def _one_by_one(natty: Natty, stream: str, wanted: Iterator[int]) -> AsyncGenerator[list[tuple[int, str]], None]:
    """Read the messages themselves: a work-queue stream has no room for another reader."""
    while some := list(islice(wanted, AT_ONCE)):
        messages = await asyncio.gather(*(natty.jetstream.read(stream, sequence=one) for one in some))
        yield [(one.sequence, one.subject) for one in messages if one is not None]
