"""The audit trail: a note for each term, stored for 30 days. It is for people; no decision uses it."""

from __future__ import annotations

import contextlib
import logging
import re
import time

import msgspec

from natty.elections.record import Subjects
from natty.elections.term import READ_TIMEOUT, Term
from natty.errors import BadRecordError, BucketNotFoundError, NattyError
from natty.jetstream import JetStream
from natty.kv.json_records import Text, UnixTime, Whole, decode
from natty.streams import stream_state

KEPT = 30 * 24 * 3600  # seconds
_TOKEN = re.compile(r"[0-9]{1,20}")

log = logging.getLogger("natty.leader")


class TermNote(msgspec.Struct, frozen=True, kw_only=True):
    """One term: its node, its token, its begin and end in Unix time. A term that was lost has no end."""

    node: Text
    token: Whole
    number: Whole
    began: UnixTime
    ended: UnixTime | None = None
    reason: Text = ""


async def note_begin(jetstream: JetStream, subjects: Subjects, term: Term) -> None:
    """Write the note of a term that begins."""
    await _write(jetstream, subjects, TermNote(node=term.node, token=term.token, number=term.number, began=time.time()))


async def note_end(jetstream: JetStream, subjects: Subjects, term: Term, reason: str) -> None:
    """Write the end of a term, and its reason."""
    note = TermNote(
        node=term.node, token=term.token, number=term.number, began=term.number / 1000, ended=time.time(), reason=reason
    )
    await _write(jetstream, subjects, note)


async def _write(jetstream: JetStream, subjects: Subjects, note: TermNote) -> None:
    with contextlib.suppress(NattyError):  # the trail is for people: the term continues without it
        await jetstream.publish(
            subjects.term(note.token), msgspec.json.encode(note), headers={"Nats-TTL": str(KEPT)}, timeout=READ_TIMEOUT
        )


async def trail(jetstream: JetStream, subjects: Subjects, *, last: int = 20) -> list[TermNote]:
    """Return the notes of the last terms, oldest first; an empty list if there never was a leader.

    Logs and skips a note that can't be read.
    """
    try:
        state = await stream_state(jetstream, subjects.stream, subjects=subjects.term("*"))
    except BucketNotFoundError:
        return []
    ends = (subject.rpartition(".")[2] for subject in state.get("subjects") or {})
    tokens = sorted(int(end) for end in ends if _TOKEN.fullmatch(end))
    notes: list[TermNote] = []
    for token in tokens[-last:]:
        stored = await jetstream.read(subjects.stream, subject=subjects.term(token))
        if stored is not None and not stored.is_marker:
            try:
                notes.append(decode(stored.data, TermNote))
            except BadRecordError as error:
                log.warning("%s can't be read: %s", subjects.term(token), error, extra={"action": "bad_record"})
    return notes
