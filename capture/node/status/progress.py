"""How far a stream is captured: what the server reports, and what the archive holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from capture.archive.coverage import Coverage
from capture.archive.scope import Asked, list_replacing_limits, read_records
from capture.archive.sequences import Sequences
from capture.config.settings import CaptureConfig
from capture.ingest.board import StreamState, server_time
from capture.ingest.source import stream_info
from capture.node.status.backlog import Backlog, read_backlog, read_direct_backlog
from capture.reading.remaining import ArchivePosition, open_position
from capture.reading.stream_times import Deletions, Extent
from capture.stores import Store
from natty import Natty, NattyError
from natty.config.units import NANOSECONDS
from natty.wire.repeated import Repeated

LONGEST_SET = 64 << 10  # bytes of a published set of sequences: a key's value is a message

_repeated = Repeated(logging.getLogger("capture.progress"))


@dataclass(frozen=True)
class Missing:
    """Acknowledged messages that are in the stream and in no object. Nodes may still store `awaited`, not `missing`.

    `remedy` says what happens to the missing ones. The sweep has stored `healed` of them since its leader began, and
    the sequences `stored` in this sweep.
    """

    awaited: Sequences = field(default_factory=Sequences)
    missing: Sequences = field(default_factory=Sequences)
    remedy: str = ""
    healed: int = 0
    stored: Sequences = field(default_factory=Sequences)


@dataclass(frozen=True)
class Progress:
    """The server's state of a stream at `now` by its clock. Read it before a sweep, which then finds what was acked."""

    stream: str
    first: int
    last: int
    now: float
    backlog: Backlog
    asked: list[Asked]  # the recorded scope of its durables
    work_queue: bool = False
    interest: bool = False
    removal: str = ""  # why messages may have left the stream
    created: str = ""
    deleted: int = 0  # how many sequences between the first and the last one it does not have

    @property
    def extent(self) -> Extent:
        """The sequences of the stream."""
        return Extent(self.stream, self.created, self.first, self.last, self.deleted)

    @property
    def before_scope(self) -> Sequences:
        """The sequences before the start of every durable."""
        return Sequences.from_range(1, min((one.start for one in self.asked), default=1) - 1)

    @property
    def whole(self) -> bool:
        """Whether messages of all subjects were always to be captured."""
        return self.backlog.gets_all and not any(one.filter_subjects for one in self.asked)

    def is_in_scope(self, sequence: int, subject: str) -> bool:
        """Return whether a message was to be captured."""
        return not self.asked or any(one.start <= sequence and one.takes(subject) for one in self.asked)

    def gaps(self, found: Coverage) -> Sequences:
        """Return the acknowledged sequences that are not held: deleted, expired, outside the scope, or missing."""
        begin = min((one.start for one in self.asked), default=None)
        return found.gaps(self.backlog.acked, None if begin is None else max(1, self.first, begin))

    async def present(self, deletions: Deletions) -> Sequences | None:
        """Return the stream's sequences up to the last acknowledged message; None if the server reports none."""
        try:
            there, _ = await deletions.present(self.extent)
        except NattyError as error:
            text = f"the missing messages of {self.stream} can't be determined: {error}"
            _repeated.info(text, text, extra={"action": "no_progress"})
            return None
        return there.within(1, self.backlog.acked)

    def state(self, found: Coverage | None, missing: Missing | None, gone: Sequences | None = None) -> StreamState:
        """Return the progress of the stream. With None for `found` or `missing`, these figures are not known this time.

        `gone` are messages that left the stream before a node could store them.
        """
        known, oldest = found or Coverage(), self.backlog.oldest
        lacks = missing or Missing()
        gaps = self.gaps(found) - lacks.stored if found else Sequences()
        return StreamState(
            stream=self.stream,
            first=self.first,
            last=self.last,
            acked=self.backlog.acked,
            pending=self.backlog.pending,
            unacked=self.backlog.unacked,
            lag=None if oldest is None else max(0.0, self.now - oldest),
            waiting_from=self.backlog.first,
            held=len(known.held),
            overlaps=len(known.overlaps),
            removed=len(known.removed - known.held),
            gaps=len(gaps),
            gaps_are=gaps.describe() if gaps else "",
            missing=None if missing is None else len(missing.missing),
            missing_are=lacks.missing.describe() if lacks.missing else "",
            remedy=lacks.remedy,
            awaited=len(lacks.awaited),
            awaited_are=lacks.awaited.describe() if lacks.awaited else "",
            awaited_set=text if len(text := lacks.awaited.to_text()) <= LONGEST_SET else "",
            ack_wait=self.backlog.ack_wait,
            healed=lacks.healed,
            gone=len(gone) if gone else 0,
            gone_are=gone.describe() if gone else "",
            gone_because=self.removal if gone else "",
        )


async def read_progress(
    natty: Natty,
    store: Store,
    stream: str,
    config: CaptureConfig,
    position: Callable[[str], ArchivePosition] | None = None,
) -> Progress | None:
    """Request the progress of a stream from the server; None if it does not report it, or has no stream or consumer.

    Of a capture without a consumer, `position` returns what reads its position in a stream; default: a new one.
    StoreError; ManifestError if the recorded scope of a durable can't be read.
    """
    try:
        direct, opened = config.is_direct, position or partial(open_position, natty, config, store, None)
        backlog = await (
            read_direct_backlog(natty, store, opened(stream)) if direct else read_backlog(natty, config, stream)
        )
        info = await stream_info(natty, stream)
    except NattyError as error:
        text = f"the capture progress of {stream} can't be determined: {error}"
        _repeated.info(text, text, extra={"action": "no_progress"})
        return None
    extent = Extent.of(stream, info)
    return Progress(
        stream,
        first=extent.first,
        last=extent.last,
        now=server_time(info),
        backlog=backlog,
        asked=await read_records(store, stream),
        work_queue=info["config"]["retention"] == "workqueue",
        interest=info["config"]["retention"] == "interest",
        removal=removal(info["config"]),
        created=extent.created,
        deleted=extent.deleted,
    )


def removal(config: Mapping[str, Any]) -> str:
    """Return, for people, what may have removed a message from a stream with this configuration."""
    rules = []
    if config.get("retention") == "interest":
        rules.append("it keeps only what a consumer has not acknowledged (retention = interest)")
    if config.get("retention") == "workqueue":
        rules.append("it deletes what any client acknowledges (retention = workqueue)")
    if age := config.get("max_age"):
        rules.append(f"it removes what is older than {age / NANOSECONDS:g} s (max_age)")
    if config.get("allow_msg_ttl"):
        rules.append("a message may have a TTL of its own (Nats-TTL)")
    if limits := list_replacing_limits(config):
        rules.append(f"it removes the oldest where {' or '.join(limits)} is reached")
    return "; ".join([*rules, "or they were purged, rolled up or deleted" if rules else "they were purged or deleted"])
