"""What an archive holds against what its stream says, for the command line and the demo."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from capture.chain import latest_offline
from capture.config import CaptureConfig
from capture.errors import CaptureError
from capture.head import COMPACTION, SWEEP
from capture.manifest import Manifest
from capture.picture import Picture, read_picture
from capture.sequences import Sequences
from capture.source import stream_info
from capture.stores import Store
from capture.sweep import read_entries
from capture.table import Table
from capture.verify import StreamView, Verdict, read_archive
from natty import ConsumerNotFoundError, Natty
from natty.stream import stream_state


@dataclass(frozen=True)
class Check:
    """A verdict on the sequences that were acknowledged; the ones after them are on their way."""

    verdict: Verdict
    unacknowledged: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is missing, nothing is there twice, and every object is sound."""
        return self.verdict.ok

    def sentence(self) -> str:
        """Return the verdict for people."""
        behind = f"; {self.unacknowledged:,} newer ones are not acknowledged yet" if self.unacknowledged else ""
        return self.verdict.sentence() + behind

    def as_dict(self) -> dict[str, object]:
        """Return the verdict for programs."""
        return self.verdict.as_dict() | {"unacknowledged": self.unacknowledged}


async def check(natty: Natty | None, config: CaptureConfig, store: Store, *, deep: bool = False) -> Check:
    """Compare archive and stream by exact sets. Without `natty` only the archive itself is looked at.

    The stream is read first, then the entries, then manifest and table: what was acknowledged is then in one of them.
    """
    stream, unacknowledged = await _stream(natty, config) if natty else (None, 0)
    entries, unreadable = await read_entries(store)
    picture = await archive_picture(natty, config, store)
    view = await read_archive(store, picture, deep=deep, pending_entries=entries, keys=config.keys())
    if not config.stream and len(view.streams) > 1:
        raise CaptureError(f"the archive holds several streams, {', '.join(view.streams)}: name one with --stream")
    holdings = view.of(config.stream or next(iter(view.streams), ""))
    verdict = holdings.compare(stream)
    return Check(_with(verdict, unreadable), unacknowledged)


def _with(verdict: Verdict, unreadable: list[str]) -> Verdict:
    fields: dict[str, Any] = vars(verdict) | {"problems": (*verdict.problems, *unreadable)}
    return Verdict(**fields)


async def _stream(natty: Natty, config: CaptureConfig) -> tuple[StreamView, int]:
    """Return the stream up to what its durable consumer has acknowledged, and how many messages come after that."""
    await stream_info(natty, config.stream)
    state = await stream_state(natty.jetstream, config.stream, deleted=True)
    try:
        consumer = await natty.jetstream.request(f"CONSUMER.INFO.{config.stream}.{config.durable}")
        floor = int(consumer["ack_floor"]["stream_seq"])
        waiting = int(consumer["num_pending"]) + int(consumer["num_ack_pending"])
    except ConsumerNotFoundError:
        floor, waiting = state["last_seq"], 0
    last = min(state["last_seq"], floor) if waiting else state["last_seq"]
    deleted = Sequences.from_iterable(state.get("deleted") or [])
    first = max(1, state["first_seq"])  # a stream that never held a message says 0, and that 0 is deleted
    return StreamView(first=first, last=last, deleted=deleted), waiting


async def archive_picture(natty: Natty | None, config: CaptureConfig, store: Store) -> Picture:
    """Return the archive as last committed; without `natty`, by the newest documents in the store."""
    if natty is None:
        return await read_picture(
            store, partial(latest_offline, store, Manifest), partial(latest_offline, store, Table)
        )
    return await read_picture(store, SWEEP.reader(natty, config.name), COMPACTION.reader(natty, config.name))
