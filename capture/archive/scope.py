"""The capture scope of an archive: where each of its durable consumers started, and which subjects it filtered.

Earlier messages, and those of other subjects, are not missing. Every durable consumer has a record, written before its
first message is stored; one that is created again has another record. Together they define the scope.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import islice
from typing import Any

import msgspec

from capture.archive.identity import read_record
from capture.archive.manifest import quote_key
from capture.archive.sequences import Sequences
from capture.errors import AlreadyStoredError
from capture.stores import Store
from natty import Batch, Natty
from natty.names import covers
from natty.pulling.ordered import CaughtUp, Ordered, OrderedOptions
from natty.wire.background import map_concurrently

ASKED = "_asked/"
READ_AHEAD = 8192  # messages; the server sends only their headers
AT_ONCE = 64  # messages that are read in parallel from a stream that allows no second reader
_TIME = re.compile(r"[^0-9A-Za-z]")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The scope of a durable consumer: every message from sequence `start` on, of these subjects or of all.

    `created` is the durable's creation time in the server's format: a durable that is created again is another one.
    """

    stream: str
    durable: str
    created: str
    start: int = 1
    filter_subjects: list[str] = []
    format: int = 1

    @property
    def path(self) -> str:
        """The path of its record."""
        return f"{_folder(self.stream)}{quote_key(self.durable)}-{_TIME.sub('', self.created)}.json"

    def takes(self, subject: str) -> bool:
        """Return whether messages of this subject are in its scope."""
        return not self.filter_subjects or covers(self.filter_subjects, subject)


def _folder(stream: str) -> str:
    return f"{ASKED}{quote_key(stream)}/"


async def write_record(store: Store, asked: Asked) -> None:
    """Write the record unless it exists: the scope of a durable never changes."""
    try:
        await store.put(asked.path, msgspec.json.encode(asked))
    except AlreadyStoredError:
        return


async def read_records(store: Store, stream: str) -> list[Asked]:
    """Return the records of a stream's durables; versions without `start` wrote none."""
    return [await read_record(store, one.path, Asked) for one in await store.list(_folder(stream))]


async def find_out_of_scope(natty: Natty, store: Store, stream: str, missing: Sequences) -> Sequences:
    """Return which of the missing sequences are outside the archive's scope.

    They are before the start of every durable, or their messages in the stream have subjects that no durable filters.
    The subject of a message that is not in the stream any more is unknown, so its sequence stays missing.
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
    async with aclosing(_read_subjects(natty, stream, doubtful)) as subjects:
        async for some in subjects:
            unasked.append(
                Sequences.from_iterable(
                    sequence
                    for sequence, subject in some
                    if not any(one.start <= sequence and one.takes(subject) for one in records)
                )
            )
    return Sequences.union_of(unasked)


async def _read_subjects(natty: Natty, stream: str, wanted: Sequences) -> AsyncGenerator[list[tuple[int, str]], None]:
    """Yield the subjects of those of the wanted messages that are in the stream, in batches."""
    info = await natty.jetstream.request(f"STREAM.INFO.{stream}")
    if info["config"]["retention"] == "workqueue":
        upcoming = iter(wanted)  # one by one: a work-queue stream does not allow another reader
        while some := list(islice(upcoming, AT_ONCE)):
            messages = await map_concurrently(some, lambda one: natty.jetstream.read(stream, sequence=one))
            yield [(one.sequence, one.subject) for one in messages if one is not None]
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


def list_replacing_limits(config: Mapping[str, Any]) -> list[str]:
    """Return the limits of a stream at which it removes its oldest messages, or those of a subject, for new ones.

    With `discard = "new"` the server refuses new messages instead; for a subject's only with `discard_new_per_subject`.
    """
    refused = set[str]()
    if config.get("discard") == "new":
        refused = {"max_msgs", "max_bytes"}
        if config.get("discard_new_per_subject"):
            refused.add("max_msgs_per_subject")
    limits = ("max_msgs", "max_bytes", "max_msgs_per_subject")
    return [name for name in limits if config.get(name, -1) > 0 and name not in refused]
