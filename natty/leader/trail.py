"""The audit trail: a note for each term, kept a month. For people; no decision is based on it."""

from __future__ import annotations

import contextlib
import time

import msgspec

from natty.errors import BucketNotFoundError, NattyError
from natty.jetstream import JetStream
from natty.leader.record import Subjects
from natty.leader.term import READ_TIMEOUT, Term

KEPT = 30 * 24 * 3600  # seconds


class TermNote(msgspec.Struct, frozen=True, kw_only=True):
    """One term: who, under which token, from when to when in Unix time; no end where the term was lost, not left."""

    node: str
    token: int
    number: int
    began: float
    ended: float | None = None
    reason: str = ""


async def note_begin(jetstream: JetStream, subjects: Subjects, term: Term) -> None:
    """Write that a term began."""
    await _write(jetstream, subjects, TermNote(node=term.node, token=term.token, number=term.number, began=time.time()))


async def note_end(jetstream: JetStream, subjects: Subjects, term: Term, reason: str) -> None:
    """Write that it was left, and why."""
    note = TermNote(
        node=term.node, token=term.token, number=term.number, began=term.number / 1000, ended=time.time(), reason=reason
    )
    await _write(jetstream, subjects, note)


async def _write(jetstream: JetStream, subjects: Subjects, note: TermNote) -> None:
    with contextlib.suppress(NattyError):  # the trail is for people, the term goes on
        await jetstream.publish(
            subjects.term(note.token), msgspec.json.encode(note), headers={"Nats-TTL": str(KEPT)}, timeout=READ_TIMEOUT
        )


async def trail(jetstream: JetStream, subjects: Subjects, *, last: int = 20) -> list[TermNote]:
    """Return the notes of the last terms, oldest first; none where nobody was ever elected."""
    try:
        answer = await jetstream.request(f"STREAM.INFO.{subjects.stream}", {"subjects_filter": subjects.term("*")})
    except BucketNotFoundError:
        return []
    tokens = sorted(int(subject.rpartition(".")[2]) for subject in answer["state"].get("subjects") or {})
    notes = []
    for token in tokens[-last:]:
        stored = await jetstream.read(subjects.stream, subject=subjects.term(token))
        if stored is not None and not stored.is_marker:
            notes.append(msgspec.json.decode(stored.data, type=TermNote))
    return notes
