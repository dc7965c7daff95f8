"""Finds acknowledged messages that are not stored, if only some subjects are captured: counts, and reads few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from capture.archive.coverage import Coverage
from capture.archive.sequences import Sequences
from capture.node.status.progress import Progress
from natty import Natty, NattyError
from natty.names import covers
from natty.wire.background import map_concurrently

PROBES = 200  # requests for each search, at most; the next search continues
SPAN = 64  # ranges of at most this many sequences are read one by one
MOST = 5000  # messages that one search reads, at most
AT_ONCE = 32
INACTIVE = 10 * 10**9  # nanoseconds after which the server deletes a consumer that could not be deleted

Count = Callable[[int], Awaitable[int]]
"""Returns how many messages of the captured subjects a stream has from this sequence up."""


class Search:
    """Finds messages of the captured subjects that are in no object; remembers which messages have other subjects."""

    def __init__(self, natty: Natty) -> None:
        self._natty = natty
        self._unwanted: dict[str, Sequences] = defaultdict(Sequences)

    def __repr__(self) -> str:
        return f"Search({dict(self._unwanted)})"

    async def find_unstored(self, progress: Progress, found: Coverage, present: Sequences) -> Sequences | None:
        """Return such messages up to the last acknowledged one, a portion at a time.

        Returns None if the answer is unknown: the server does not answer, or other subjects were captured before.
        `present` are the sequences that the stream has up to there.
        """
        filters = set(progress.backlog.filters)
        if any({*one.filter_subjects} - filters or not one.filter_subjects for one in progress.asked):
            return None
        self._unwanted[progress.stream] &= present
        known = present & (found.held | found.removed)
        doubted = (present & progress.gaps(found)) - self._unwanted[progress.stream]
        try:
            if not progress.work_queue:  # it takes no second consumer, and has few messages below the ack floor
                count = _count_from(self._natty, progress.stream, sorted(filters))
                doubted = await narrow(doubted, known, count)
            return await self._read_doubted(progress, doubted)
        except NattyError:
            return None

    async def _read_doubted(self, progress: Progress, doubted: Sequences) -> Sequences:
        found: dict[bool, list[int]] = {True: [], False: []}

        async def read(sequence: int) -> None:
            if message := await self._natty.jetstream.read(progress.stream, sequence=sequence):
                found[is_wanted(progress, sequence, message.subject)].append(sequence)

        try:
            await map_concurrently(islice(doubted, MOST), read, at_once=AT_ONCE)
        finally:
            self._unwanted[progress.stream] |= Sequences.from_iterable(found[False])
        return Sequences.from_iterable(found[True])


def is_wanted(progress: Progress, sequence: int, subject: str) -> bool:
    """Return whether a message should be captured and has one of the subjects that are captured now."""
    filters = progress.backlog.filters
    return progress.is_in_scope(sequence, subject) and (">" in filters or covers(filters, subject))


async def narrow(doubted: Sequences, known: Sequences, count: Count) -> Sequences:
    """Return the doubted sequences in ranges in which the stream has more messages than `known`.

    It halves ranges until `SPAN` sequences are left, and makes at most `PROBES` requests.
    """
    counts: dict[int, int] = {}

    async def after(sequence: int) -> int:
        if sequence not in counts:
            counts[sequence] = await count(sequence)
        return counts[sequence]

    found: list[Sequences] = []
    ranges = [(doubted.first, doubted.last)] if doubted else []
    while ranges and len(counts) < PROBES and sum(map(len, found)) < MOST:
        first, last = ranges.pop()
        if await after(first) - await after(last + 1) <= len(known.within(first, last)):
            continue
        if last - first < SPAN:
            found.append(doubted.within(first, last))
            continue
        middle = (first + last) // 2
        ranges += [(middle + 1, last), (first, middle)]  # the lower half first
    return Sequences.union_of(found)


def _count_from(natty: Natty, stream: str, filters: list[str]) -> Count:
    async def count(sequence: int) -> int:
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "ack_policy": "none",
            "filter_subjects": filters,
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE,
        }
        body = {"stream_name": stream, "config": config}
        made = await natty.jetstream.request(f"CONSUMER.CREATE.{stream}", body)
        with suppress(NattyError):
            await natty.jetstream.request(f"CONSUMER.DELETE.{stream}.{made['name']}")
        return int(made["num_pending"])

    return count
